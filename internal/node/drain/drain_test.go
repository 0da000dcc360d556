// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve starts a server and returns its socket.
func serve(t *testing.T) string {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: the kernel tells only root a client's network namespace")
	}
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{MinWait: func(context.Context, []netip.Addr) time.Duration { return 0 }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(requestTime / 2):
			t.Error("the server does not end while clients say nothing")
		}
	})
	return path
}

func connect(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestRequests asks from the node's own network namespace.
func TestRequests(t *testing.T) {
	path := serve(t)
	for query, want := range map[string]string{
		"": notLinked, "minWait=1s&quiet=1s&maxWait=2s": notLinked, "maxWait=99999h": notLinked,
		"quiet=soon": `quiet: "soon" is not a duration`, "maxWait=-1s": `maxWait: "-1s" is not a duration`,
	} {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
		r, err := client.Get("http://slipstream/?" + query)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%q: %s, %v; want %q", query, text, err, want)
		}
	}
}

// TestSilentClients has many clients connect that say nothing. Only some of them stay, and when they end others have their places.
func TestSilentClients(t *testing.T) {
	path := serve(t)
	var stay []net.Conn
	for range 3 * mostClients {
		c := connect(t, path)
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		var late net.Error
		if _, err := c.Read(make([]byte, 1)); errors.As(err, &late) && late.Timeout() {
			stay = append(stay, c)
		}
	}
	if len(stay) != mostClients {
		t.Errorf("%d connections stay", len(stay))
	}
	for _, c := range stay {
		c.Close()
	}
	for deadline := time.Now().Add(requestTime); ; time.Sleep(10 * time.Millisecond) {
		c := connect(t, path)
		if _, err := c.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err == nil {
			if text, _ := io.ReadAll(c); strings.Contains(string(text), notLinked) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("no answer after the others have ended")
		}
	}
}
