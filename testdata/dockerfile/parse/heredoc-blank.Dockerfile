FROM scratch
RUN echo $(( 1 << 3 ))
