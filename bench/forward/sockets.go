// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/socket"
	"golang.org/x/sys/unix"
)

// useSockets attaches the programs of sockets for the client's pod, or removes them.
func (n *network) useSockets(ctx context.Context, use bool) (err error) {
	m := n.node
	if !use {
		const pause = time.Second // in which the kernel frees the maps
		defer time.Sleep(pause)
		return socket.Remove(m.FD())
	}
	dir, err := os.MkdirTemp("", "netns")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "cni-00000000-0000-0000-0000-000000000000")
	defer func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err = os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.client.FD()), path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	b, err := socket.New(socket.Options{NetNS: m.FD(), Pods: dir})
	if err != nil {
		return err
	}
	_, err = b.Reconcile(ctx, m.services)
	return errors.Join(err, b.Close()) // the programs stay attached
}
