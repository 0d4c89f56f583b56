FROM scratch
RUN --mount=type=bind,source=/s,target=/m,from=build,rw --mount=type=cache,target=/c,id=x,sharing=locked,mode=0700,uid=5,gid=6 x
RUN --mount=type=tmpfs,target=$t,size=1m --mount=type=secret,id=s,env=TOK,required --mount=type=ssh x
RUN --mount=typ=tmpfs x
RUN --mount=type=cache,sharing=foo,target=/c x
RUN --network=none --security=insecure x
RUN --network=host --device=vendor.com/gpu=0,required \
  --mount="type=bind,target=/a b" x
RUN -- --foo x
RUN --network= y
