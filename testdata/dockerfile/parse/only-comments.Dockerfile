# only

   # this
