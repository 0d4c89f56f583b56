# escape=\
# ESCAPE=`
FROM scratch
