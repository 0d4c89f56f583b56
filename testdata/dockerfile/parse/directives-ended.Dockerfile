# foo=bar
# escape=`
FROM scratch
ENV a=`
RUN x`
