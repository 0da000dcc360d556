// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	again = 500 * time.Millisecond // the pause before the proxy is asked again
	grace = time.Second            // for an answer that says that MaxWait is over
)

// Wait asks the proxy on a Unix socket, and returns when new connections have ceased, or after r.MaxWait. Without an answer it
// asks again: the proxy may be restarted meanwhile. The error says why there was none; the time has passed then, too.
func Wait(ctx context.Context, path string, r Request) (result Result, err error) {
	begun := time.Now()
	parent := ctx
	ctx, cancel := context.WithTimeout(parent, r.MaxWait)
	defer cancel()
	answered, stop := context.WithTimeout(parent, r.MaxWait+grace)
	defer stop()
	for ctx.Err() == nil {
		left := r
		left.MaxWait -= time.Since(begun)
		var last Result
		if last, err = ask(answered, path, left); err == nil && last.Refused == "" {
			if !last.Quiet {
				<-ctx.Done() // if the node cannot tell, the proxy answers at once
			}
			last.Waited = time.Since(begun)
			return last, nil
		}
		if err == nil {
			err = errors.New(last.Refused)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
	return Result{Waited: time.Since(begun)}, err
}

func ask(ctx context.Context, path string, r Request) (result Result, err error) {
	namespace, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return result, fmt.Errorf("rtnetlink socket: %w", err)
	}
	defer unix.Close(namespace)
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return result, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	b, err := json.Marshal(r)
	if err != nil {
		return result, err
	}
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix(b, unix.UnixRights(namespace), nil); err != nil {
		return result, err
	}
	if err := json.NewDecoder(c).Decode(&result); err != nil {
		return result, fmt.Errorf("no answer of the proxy: %w", err)
	}
	return result, nil
}
