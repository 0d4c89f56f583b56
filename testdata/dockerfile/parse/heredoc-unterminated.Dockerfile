FROM scratch
RUN <<EOF \
 x
a
 EOF
EOF 
