// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/node/takeover"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
)

// cleanupOptions are the flags of "slipstream cleanup".
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
"inet slipstream-fastpath", and iptables chains and IP sets with names that begin with
SLIP-. Like 'kube-proxy --cleanup', it also removes everything of kube-proxy, in any
mode: nftables tables, iptables chains, IPVS virtual servers, the interface kube-ipvs0
and IP sets. With --keep-kube-proxy, kube-proxy's objects stay: for the way back, when
kube-proxy runs again.

New connections to Services no longer work after it, unless kube-proxy runs.
Established ones go on where something else on the node translates addresses too,
as most pod networks do; otherwise the kernel stops translating altogether, and they
end. Stop 'slipstream run' before, or it will repair what is removed.`,
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
	f.StringSliceVar(&o.excludeCIDRs, "ipvs-exclude-cidrs", nil, "ranges of addresses whose IPVS virtual servers are not kube-proxy's")
	cmd.MarkFlagsMutuallyExclusive("keep-kube-proxy", "ipvs-exclude-cidrs")
	return cmd
}

// cleanUp removes what slipstream has programmed and, unless that is to stay, what
// kube-proxy has. It does all it can, whatever fails.
func cleanUp(ctx context.Context, excludeCIDRs []netip.Prefix, keepKubeProxy bool) error {
	errs := []error{removeModes(ctx, ""), cleanUpFastPath()}
	if !keepKubeProxy {
		errs = append(errs, takeover.Remove(ctx, takeOverOptions(excludeCIDRs)))
	}
	return errors.Join(errs...)
}

func cleanUpFastPath() error {
	fast, err := fastpath.New(fastpath.Config{}) // off: it only removes
	if err != nil {
		return err
	}
	return fast.Stop()
}

// takeOverOptions have the log tell what goes of what kube-proxy has left. excludeCIDRs
// is its ipvs.excludeCIDRs.
func takeOverOptions(excludeCIDRs []netip.Prefix) takeover.Options {
	return takeover.Options{
		ExcludeCIDRs: excludeCIDRs,
		Removed:      func(what string) { klog.InfoS("Removed what kube-proxy had left", "what", what) },
	}
}
