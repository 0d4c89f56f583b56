FROM scratch
ENV a=1 # c
