FROM scratch
RUN <<EOF
set -e
  # kept

echo "a\
 b"
EOF
RUN <<EOF cat > /a
hi $HOME
EOF
RUN cat <<A >x && cat <<'B'
a
A
b
B
RUN <<-EOF
		echo t
	EOF
RUN cat <<-EOF
		x
	EOF
RUN <<script
#!/bin/awk -f
BEGIN{}
script
RUN 3<<"a b" cat <&3
x
a b
RUN << EOF
spaced
EOF
RUN --network=none <<EOF
flagged
EOF
RUN cat <<EOF \
  | tr a b
x
EOF
