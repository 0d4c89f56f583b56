  FROM scratch
# a comment
RUN echo a \
   b
ENV a=1 \
# c1
   # c2
 b=2
ENV c=1 \   
 d=2
ENV e=1 \

	
 f=2
ENV g=h\
i
\
ENV j=\
\
k
CMD ["a",\
 "b"]
RUN two \\
RUN three \\\
RUN last \