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

	"github.com/slipstream-proxy/slipstream/internal/config"
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
		m.OnMode(config.TraitsOf(config.NFTables).Metrics)
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

// TestConnectionsAreBounded opens more connections than an endpoint may have. The one that waits for the
// longest ends; one that is being answered does not.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, answer := make(piped), make(chan bool)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-answer
			}
		})}
		Bound(s)
		go s.Serve(l)
		dial := func() net.Conn {
			client, server := net.Pipe()
			l <- server
			return client
		}
		get := func(c net.Conn, path string) error {
			if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
				return err
			}
			_, err := http.ReadResponse(bufio.NewReader(c), nil)
			return err
		}
		slow, slowEnded := dial(), make(chan error, 1)
		go func() { slowEnded <- get(slow, "/slow") }()
		synctest.Wait()
		oldest := dial()
		if err := get(oldest, "/"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until it waits for a request
		var others []net.Conn
		for range maxConnections - 1 { // one too many
			others = append(others, dial())
		}
		synctest.Wait()
		if err := get(oldest, "/"); err == nil {
			t.Error("the connection that waited for the longest goes on")
		}
		for _, c := range []net.Conn{others[0], others[len(others)-1]} {
			if err := get(c, "/"); err != nil {
				t.Error(err)
			}
		}
		close(answer)
		if err := <-slowEnded; err != nil {
			t.Errorf("a connection that was being answered: %v", err)
		}
		s.Close()
	})
}
