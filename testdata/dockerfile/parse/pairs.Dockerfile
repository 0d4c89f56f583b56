FROM scratch
ENV a b=c "d"
ENV a='x y' b="p q" c=m\ n
LABEL a=1 "b c"="d e" f=\
2
LABEL k  v  w
ENV a= b="" c=a=b
ENV p="${z:-x y}" q=1#2 #r=3
ARG A=1 B C= D="x y"
ARG $K=1
ENV é=€
