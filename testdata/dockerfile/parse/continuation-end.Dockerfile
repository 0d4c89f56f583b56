FROM a
RUN b \
# c

  \
