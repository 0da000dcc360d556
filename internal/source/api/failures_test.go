// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

func TestCauseOf(t *testing.T) {
	near := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:34567"))
	far := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:6443"))
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("services is forbidden"), "services is forbidden"},
		{&url.Error{Op: "Get", URL: "https://192.0.2.1?timeoutSeconds=317", Err: io.EOF}, "the connection ended before an answer came"},
		{&url.Error{Op: "Get", URL: "https://192.0.2.1", Err: &net.OpError{Op: "dial", Net: "tcp", Addr: far, Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}},
			"dial tcp 192.0.2.1:6443: connect: connection refused"},
		{&url.Error{Op: "Get", URL: "https://192.0.2.1", Err: &net.OpError{Op: "read", Net: "tcp", Source: near, Addr: far, Err: os.NewSyscallError("read", unix.ECONNRESET)}},
			"read 192.0.2.1:6443: read: connection reset by peer"},
		{&url.Error{Op: "Get", URL: "https://192.0.2.1", Err: http2.StreamError{StreamID: 7, Code: http2.ErrCodeInternal}},
			"the API server ended the request: INTERNAL_ERROR"},
		{errors.New(strings.Repeat("x", 1000)), strings.Repeat("x", 300) + "..."},
	} {
		if got := causeOf(c.err); got != c.want {
			t.Errorf("causeOf(%q) = %q, want %q", c.err, got, c.want)
		}
	}
}
