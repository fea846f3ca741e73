module tools/pause

go 1.24
