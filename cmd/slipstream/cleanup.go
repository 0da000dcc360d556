// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/node/takeover"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
)

type cleanupOptions struct {
	keepKubeProxy bool
	excludeCIDRs  []string
}

func newCleanup() *cobra.Command {
	var o cleanupOptions
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of Slipstream and of kube-proxy from the kernel",
		Long: `Cleanup removes everything that any earlier run of slipstream has programmed on
this node, in any mode: the nftables tables "ip slipstream", "ip6 slipstream" and
"inet slipstream-fastpath", the BPF programs of the fast path and of sockets, and iptables chains and IP sets
with names that begin with SLIP-. Like 'kube-proxy --cleanup', it also removes everything of kube-proxy, in any
mode: nftables tables, iptables chains, IPVS virtual servers, the interface kube-ipvs0
and IP sets. With --keep-kube-proxy, kube-proxy's objects are kept: use it when kube-proxy
runs again. Virtual servers and kube-ipvs0 count as kube-proxy's, which adopts them.

After that, new connections to Services do not work unless kube-proxy runs.
Established connections continue if other software on the node uses NAT, as most pod
networks do; otherwise the kernel stops translating addresses and they end. Stop
'slipstream run' first, as it would restore the ruleset.

While net.ipv4.conf.all.route_localnet is 1, which iptables mode may have set, the chain
SLIP-LOCALNET stays: it drops packets from other machines to loopback addresses.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exclude, errs := config.ParseExcludeCIDRs(field.NewPath("--ipvs-exclude-cidrs"), o.excludeCIDRs)
			if len(errs) > 0 {
				return errs.ToAggregate()
			}
			return cleanUp(cmd.Context(), exclude, o.keepKubeProxy)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.keepKubeProxy, "keep-kube-proxy", false, "remove only what slipstream has programmed")
	f.StringSliceVar(&o.excludeCIDRs, "ipvs-exclude-cidrs", nil, "address ranges of IPVS virtual servers that do not belong to kube-proxy")
	cmd.MarkFlagsMutuallyExclusive("keep-kube-proxy", "ipvs-exclude-cidrs")
	return cmd
}

// cleanUp removes everything that slipstream and, unless keepKubeProxy is set, kube-proxy
// have programmed. It continues after errors.
func cleanUp(ctx context.Context, excludeCIDRs []netip.Prefix, keepKubeProxy bool) error {
	errs := []error{removeModes(ctx, nil), cleanUpFastPath(), socket.Remove(0)}
	if !keepKubeProxy {
		errs = append(errs, takeover.Remove(ctx, takeOverOptions(ctx, excludeCIDRs)))
	}
	return errors.Join(errs...)
}

func cleanUpFastPath() error {
	fast, err := fastpath.New(fastpath.Config{}) // threshold 0: only removes
	if err != nil {
		return err
	}
	return fast.Stop()
}

// takeOverOptions logs removed leftovers. excludeCIDRs is kube-proxy's ipvs.excludeCIDRs.
func takeOverOptions(ctx context.Context, excludeCIDRs []netip.Prefix) takeover.Options {
	return takeover.Options{
		ExcludeCIDRs:      excludeCIDRs,
		RestoreParameters: ipvs.RestoreParameters,
		Removed:           func(what string) { klog.FromContext(ctx).Info("Removed leftovers of kube-proxy", "object", what) },
	}
}
