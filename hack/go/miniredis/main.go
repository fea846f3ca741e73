// Command miniredis serves the Redis protocol from memory: the cache of Argo CD in tests.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: miniredis ADDRESS, for example 127.0.0.1:0")
		os.Exit(2)
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(server.Addr()) // with port 0, the port that the kernel chose
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	last := time.Now()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-stop:
			server.Close()
			return
		case now := <-tick.C: // keys expire only when the server's clock is moved
			server.FastForward(now.Sub(last))
			last = now
		}
	}
}
