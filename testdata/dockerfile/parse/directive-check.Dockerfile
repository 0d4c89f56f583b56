#check=skip=StageNameCasing,JSONArgsRecommended;error=true
# SYNTAX = docker/dockerfile:1 x=y
# escape = \
FROM a AS B
CMD x\
