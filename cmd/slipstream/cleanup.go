// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/node/takeover"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
)

type cleanupOptions struct {
	kubeProxy, force, dryRun bool
	socket                   string
	excludeCIDRs             []string
}

func newCleanup() *cobra.Command {
	var o cleanupOptions
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of Slipstream from the kernel, and on request of kube-proxy",
		Long: `Cleanup removes everything that any earlier run of slipstream has programmed on
this node, in any mode: the nftables tables slipstream and slipstream-limits of ip and
ip6, and "inet slipstream-fastpath", the BPF programs of the fast path and of sockets, and iptables chains and IP sets
with names that begin with SLIP-. It says which rules it has removed. It switches GRO off where the fast path has
switched it on.

With --kube-proxy, it also removes everything of kube-proxy, as 'kube-proxy --cleanup' does, in
any mode: nftables tables, iptables chains, IPVS virtual servers, the interface kube-ipvs0
and IP sets. Virtual servers and kube-ipvs0 count as kube-proxy's, which adopts them: this flag
removes those of Slipstream's IPVS mode, too.

Stop 'slipstream run' first, as it would restore its rules: cleanup refuses while it runs in
this network namespace, and with --kube-proxy while kube-proxy does, unless --force is given.
It knows a proxy by its status socket, and by its process if that can be seen.

After that, new connections to Services do not work unless kube-proxy runs.
Established connections continue if other software on the node uses NAT, as most pod
networks do; otherwise the kernel stops translating addresses and they end.

While net.ipv4.conf.all.route_localnet is 1, which iptables mode may have set, the chain
SLIP-LOCALNET stays: it drops packets from other machines to loopback addresses.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exclude, errs := config.ParseExcludeCIDRs(field.NewPath("--ipvs-exclude-cidrs"), o.excludeCIDRs)
			if len(errs) > 0 {
				return errs.ToAggregate()
			}
			if os.Geteuid() != 0 {
				return errors.New("only root can remove what is in the kernel")
			}
			if who := running(o.socket, o.kubeProxy); who != "" && !o.force && !o.dryRun {
				return fmt.Errorf("%s is running here: stop it first, or use --force", who)
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), exclude)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.kubeProxy, "kube-proxy", false, "also remove everything that kube-proxy has programmed, and IPVS virtual servers")
	f.BoolVar(&o.force, "force", false, "remove it even while a proxy runs")
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be removed")
	f.StringVar(&o.socket, "socket", config.DefaultStatusSocket, "Unix socket by which a running proxy is known (its --status-socket)")
	f.StringSliceVar(&o.excludeCIDRs, "ipvs-exclude-cidrs", nil, "address ranges of IPVS virtual servers that do not belong to kube-proxy, and stay")
	f.Bool("keep-kube-proxy", true, "")
	_ = f.MarkDeprecated("keep-kube-proxy", "what kube-proxy has programmed stays without --kube-proxy")
	cmd.MarkFlagsMutuallyExclusive("keep-kube-proxy", "kube-proxy")
	return cmd
}

// run removes everything, and says what has gone.
func (o *cleanupOptions) run(ctx context.Context, out io.Writer, exclude []netip.Prefix) error {
	before, err := see.Kernel()
	if errors.Is(err, unix.EPERM) {
		return err
	}
	if o.dryRun {
		if o.kubeProxy {
			before = append(before, "everything that kube-proxy has programmed, and IPVS virtual servers")
		}
		for _, line := range before {
			fmt.Fprintln(out, "Would remove:", line)
		}
		if len(before) == 0 {
			fmt.Fprintln(out, "There are no rules of Slipstream.")
		}
		return err
	}
	err = errors.Join(err, cleanUp(ctx, exclude, !o.kubeProxy))
	after, failed := see.Kernel()
	if !o.kubeProxy {
		failed = errors.Join(failed, takeover.RemoveRoutes(), ipvs.Disown())
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			fmt.Fprintln(out, "Removed:", line)
		}
	}
	for _, line := range after {
		fmt.Fprintln(out, "Left:", line)
	}
	if len(before) == 0 && err == nil {
		fmt.Fprintln(out, "There were no rules of Slipstream.")
	}
	return errors.Join(err, failed)
}

// cleanUp removes everything that slipstream and, unless keepKubeProxy is set, kube-proxy
// have programmed. It continues after errors.
func cleanUp(ctx context.Context, excludeCIDRs []netip.Prefix, keepKubeProxy bool) error {
	errs := []error{removeModes(ctx, ""), cleanUpFastPath(), socket.Remove(0)}
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
