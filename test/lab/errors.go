// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
)

// ErrRefused says that the other side refuses: a TCP RST, an SCTP ABORT or an
// ICMP port unreachable in answer to the first packet (ECONNREFUSED).
var ErrRefused = errors.New("refused")

// ErrTimeout says that no answer was received in time.
var ErrTimeout = errors.New("timeout")

// TrafficError is the failure of a connection or a datagram exchange.
// errors.Is finds ErrRefused, ErrTimeout and the system's error number in it.
type TrafficError struct {
	Protocol Protocol
	Dest     netip.AddrPort
	Op       string // "open", "bind", "connect", "send" or "receive"
	Err      error
}

// Error names destination, step and cause.
func (e *TrafficError) Error() string {
	return fmt.Sprintf("%v %v: %s: %s", e.Protocol, e.Dest, e.Op, Outcome(e.Err))
}

// Unwrap returns Err.
func (e *TrafficError) Unwrap() error { return e.Err }

// Is reports whether the failure is of the kind ErrRefused or ErrTimeout.
func (e *TrafficError) Is(target error) bool {
	switch target {
	case ErrRefused:
		return errors.Is(e.Err, syscall.ECONNREFUSED)
	case ErrTimeout:
		return errors.Is(e.Err, os.ErrDeadlineExceeded) || errors.Is(e.Err, syscall.ETIMEDOUT)
	}
	return false
}

// Outcome says in few words how an attempt ended: "ok" for nil, "refused",
// "timeout", "closed without an answer", or the system's text for the error
// number ("no route to host"). There are no addresses in it, so it can be
// counted by.
func Outcome(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrRefused), errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, ErrTimeout), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	case errors.Is(err, io.EOF):
		return "closed without an answer"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}
