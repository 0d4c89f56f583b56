# syntax=docker/dockerfile:1.7 extra
#   Check = skip=MaintainerDeprecated;error=true
# escape=`
FROM scratch
ENV a=c:\d b=1 `
  c=2
MAINTAINER me
CMD x
