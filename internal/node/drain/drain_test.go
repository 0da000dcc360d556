// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serve starts a server without events and returns its socket.
func serve(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{MinWait: func(context.Context) time.Duration { return 0 }}
	done := make(chan error)
	go func() { done <- s.Serve(t.Context(), l) }()
	t.Cleanup(func() {
		l.Close()
		select {
		case <-done:
		case <-time.After(requestTime / 2):
			t.Error("the server does not end while clients say nothing")
		}
	})
	return path
}

// send sends a message with files and returns the answer.
func send(t *testing.T, path, message string, files ...int) (r Result, err error) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte(message), unix.UnixRights(files...), nil); err != nil {
		t.Fatal(err)
	}
	return r, json.NewDecoder(c).Decode(&r)
}

// TestForeignRequests sends what no client of ours sends.
func TestForeignRequests(t *testing.T) {
	path := serve(t)
	open := func(family, kind, protocol int) int {
		fd, err := unix.Socket(family, kind, protocol)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	route := open(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	file, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	for _, x := range []struct {
		what, message, want string
		files               []int
	}{
		{"not JSON", "wait", "invalid character", []int{route}},
		{"no file", "{}", "0 files", nil},
		{"two files", "{}", "2 files", []int{route, route}},
		{"a file", "{}", "the passed file", []int{file}},
		{"a socket of TCP", "{}", "not an rtnetlink socket", []int{open(unix.AF_INET, unix.SOCK_STREAM, 0)}},
		{"another netlink socket", "{}", "not an rtnetlink socket", []int{open(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT)}},
	} {
		if r, err := send(t, path, x.message, x.files...); err != nil || !strings.Contains(r.Refused, x.want) {
			t.Errorf("%s: %+v, %v; want %q", x.what, r, err, x.want)
		}
	}
}

// TestSilentClients has many clients connect that say nothing. One that asks gets an answer at once.
func TestSilentClients(t *testing.T) {
	path := serve(t)
	for range 3 * mostAsked {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	begun := time.Now()
	if r, err := send(t, path, "{}"); err != nil || r.Refused == "" || time.Since(begun) > requestTime/2 {
		t.Errorf("%+v, %v after %v", r, err, time.Since(begun))
	}
}

// TestLongMessages sends a message that is larger than a request.
func TestLongMessages(t *testing.T) {
	path := serve(t)
	if r, err := send(t, path, "{\"quiet\": 1"+strings.Repeat(" ", 3*requestSize)); err == nil && r.Refused == "" {
		t.Errorf("%+v", r)
	}
}
