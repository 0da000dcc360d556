// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
)

// StartSlipstream starts 'slipstream run' with the manifests of a directory, and returns when it has
// programmed the node's kernel. The log is written to dir.
func (n *Node) StartSlipstream(ctx context.Context, dir, binary, manifests string, args ...string) (*Program, error) {
	socket := filepath.Join(dir, n.Name()+".sock")
	p, err := n.StartProgram(dir, n.Name(), binary,
		append([]string{"run", "--manifests", manifests, "--hostname-override", n.Name(), "--status-socket", socket}, args...)...)
	if err != nil {
		return nil, err
	}
	return p, p.Await(ctx, func(ctx context.Context) error { return programmed(ctx, socket) })
}

// programmed asks a proxy on its socket whether it has programmed the kernel.
func programmed(ctx context.Context, socket string) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://slipstream/status", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var status struct{ Updated string } // when the kernel last had all changes
	if err := json.NewDecoder(answer.Body).Decode(&status); err != nil {
		return err
	}
	if status.Updated == "" {
		return errors.New("the kernel is not programmed yet")
	}
	return nil
}
