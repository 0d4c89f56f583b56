# a \
FROM a
  # indented \
	# behind a tab
#
# c \
RUN x # y \
# in between, with an end of its own \
   # indented
  z
ENV a=1 #b=2
COPY a#b # c
LABEL a="#" b='#c' \
#
d=#
#RUN y
