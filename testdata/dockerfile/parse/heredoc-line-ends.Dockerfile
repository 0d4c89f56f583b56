FROM a
RUN <<A cat
b
	c \
# d

A
COPY <<-B /x
	b
	B
ENV a=1 \
  b=2
