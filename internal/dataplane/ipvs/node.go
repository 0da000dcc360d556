// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// parameter is a file below /proc/sys/net/ipv4 with the value that IPVS mode needs, and why.
type parameter struct {
	file, value string
	optional    bool // kernels that do not have it need it not
}

// parameters are those that kube-proxy sets.
var parameters = []parameter{
	{file: "vs/conntrack", value: "1"},                 // masquerading happens in conntrack
	{file: "vs/conn_reuse_mode", value: "0"},           // a new connection from a used port is not delayed (Linux 5.9, kubernetes #81775)
	{file: "vs/expire_nodest_conn", value: "1"},        // flows to a deleted destination get another
	{file: "vs/expire_quiescent_template", value: "1"}, // clients with affinity leave a destination with weight 0
	{file: "ip_forward", value: "1"},                   // IPVS forwards
}

// strictARP are those of ipvs.strictARP: the node answers ARP requests for the addresses of
// kube-ipvs0 on no other interface, and does not announce them.
var strictARP = []parameter{{file: "conf/all/arp_ignore", value: "1"}, {file: "conf/all/arp_announce", value: "2"}}

// prepareNode sets what IPVS needs of the node: parameters, timeouts and the dummy interface.
func (b *Backend) prepareNode(ctx context.Context) error {
	if err := b.dummy.ensure(); err != nil {
		return err
	}
	all := parameters
	if b.options.StrictARP {
		all = append(all[:len(all):len(all)], strictARP...)
	}
	err := inside(b.config.NetNS, func() (err error) {
		for _, p := range all {
			err = errors.Join(err, p.set())
		}
		return err
	})
	if err != nil {
		return err
	}
	return b.conn.SetTimeouts(ctx, b.options.Timeouts)
}

// set writes the value if the parameter has another. It succeeds on a read-only /proc/sys with
// the right value.
func (p parameter) set() error {
	file := filepath.Join("/proc/sys/net/ipv4", p.file)
	is, err := os.ReadFile(file)
	if err == nil && strings.TrimSpace(string(is)) != p.value {
		err = os.WriteFile(file, []byte(p.value), 0)
	}
	switch {
	case err == nil, p.optional && errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("setting a parameter for IPVS: %w", err)
}

// restoreNode puts the parameters back that prepareNode has set.
func (b *Backend) restoreNode() error { return nil }
