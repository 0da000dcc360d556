// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net"
	"sync"
	"time"
)

// catchUp returns when packets and goroutines that were waiting for a processor have had
// it, so that on a busy machine a late answer is not taken for a lost one: a datagram goes
// to another goroutine and back on this process's lo, some times, as one may overtake what
// waits on another processor. Errors mean that there is nothing to wait for.
func catchUp() {
	c, err := net.Dial("udp", echo())
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	for range 3 {
		_, _ = c.Write([]byte{0})
		_, _ = c.Read([]byte{0})
	}
}

// echo returns the address of a server that lives as long as the process.
var echo = sync.OnceValue(func() string {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return ""
	}
	go func() {
		for buf := make([]byte, 1); ; {
			if n, from, err := server.ReadFrom(buf); err == nil {
				_, _ = server.WriteTo(buf[:n], from)
			}
		}
	}()
	return server.LocalAddr().String()
})
