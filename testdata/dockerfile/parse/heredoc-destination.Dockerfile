FROM scratch
COPY a <<EOF
x
EOF
