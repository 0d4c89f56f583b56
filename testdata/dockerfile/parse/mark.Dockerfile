# escape=`
FROM a
ENV b=﻿c` d
