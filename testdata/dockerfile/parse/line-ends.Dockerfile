from scratch
env a=1 \
 b=2
copy <<EOF /x
line
EOF
cmd ["a"]