// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// removeSets removes the IP sets of IPVS mode. kube-proxy truncates long names.
func removeSets(ctx context.Context) error {
	conn, err := ipset.Dial(0)
	if nfnl.IsUnsupported(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	var names []string
	for _, prefix := range []string{"KUBE-", "KUBE-6-"} {
		for _, name := range ipsets {
			name = prefix + name
			names = append(names, name[:min(ipset.MaxNameLen, len(name))])
		}
	}
	return conn.Destroy(ctx, names...)
}
