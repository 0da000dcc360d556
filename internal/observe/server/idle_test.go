// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
)

// piped listens for the other ends of pipes, whose time is the test's.
type piped chan net.Conn

func (p piped) Accept() (net.Conn, error) {
	c, open := <-p
	if !open {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p piped) Close() error   { close(p); return nil }
func (p piped) Addr() net.Addr { return &net.TCPAddr{} }

// TestIdle leaves a connection to the health endpoint open after an answer. The server ends it, so that a
// client cannot keep thousands.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r running
		l := make(piped)
		m := metrics.New()
		m.OnMode(metrics.ModeNFTables)
		s := New(Options{HealthzAddress: "127.0.0.1:10256", Proxy: &r.state, Events: &r.recorded, Metrics: m,
			Listen: func(string, string) (net.Listener, error) { return l, nil }})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		client, server := net.Pipe()
		l <- server
		for range 2 { // the connection is kept for a next request
			if _, err := io.WriteString(client, "GET /livez HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				t.Fatal(err)
			}
			if answer.Body.Close(); answer.StatusCode != http.StatusOK {
				t.Fatal(answer.Status)
			}
		}
		closed := make(chan error, 1)
		go func() { _, err := client.Read(make([]byte, 1)); closed <- err }()
		// The bubble's clock goes on while everything in it waits, so without a limit this waits for ever.
		if err := <-closed; err != io.EOF {
			t.Errorf("the connection ended with %v", err)
		}
		client.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
