// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
)

func newRun() *cobra.Command {
	var o runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the Service proxy",
		Long: `Run reads Services, EndpointSlices, ServiceCIDRs and this node's Node, and keeps the
kernel's rules (nftables, iptables or IPVS) in line with them until it is stopped. The rules
stay when it stops, and a new run takes them over without interruption;
'slipstream cleanup' removes them.

It is a drop-in for kube-proxy: it accepts its configuration file (--config) and its
flags, also when it is started under the name kube-proxy. Unsupported settings are
errors, or are named in the log. docs/configuration.md describes all settings,
including Slipstream's own.

Objects are read from one of
  the Kubernetes API  of --kubeconfig, --master or the configuration file, or of
                      the cluster in which this is a pod
  --manifests         a directory of manifests (*.yaml, *.yml, *.json), as for
                      'kubectl apply -f DIR'. It is watched: a saved file is
                      applied at once. An error in a file or an object is reported
                      in one line, and its last valid content stays in effect.
                      Without --config, no addresses are served and no other
                      settings of the machine are changed, except by flags.

NodePorts, and the ports for health checks of load balancers, answer on the
addresses of this node that --nodeport-addresses selects:
  primary    the first address of each family in the status of this node's Node
             object, an InternalIP if there is one; without that object, none
  all        all addresses on this node's interfaces
  localhost  loopback addresses
  ranges     the addresses on this node's interfaces that are in one of them; of a
             family without a range, all, unless there is primary
They may be combined. Changes of addresses are followed. On loopback addresses,
NodePorts answer in iptables mode on IPv4 ones, unless
--iptables-localhost-nodeports=false; and in nftables mode on 127.0.0.1 and ::1, if the
feature gate KubeProxyNFTablesLocalhostNodePorts is on and there is localhost, or a
range of loopback addresses of the family. On IPv6 link-local addresses, they never
answer.

Traffic to ClusterIPs is masqueraded unless it comes from a pod of this node, which
--detect-local-mode recognizes:
  ClusterCIDR          its source is in --cluster-cidr; in a family without such a
                       range, nothing is masqueraded
  NodeCIDR             its source is in spec.podCIDRs of this node's Node object
  BridgeInterface      it arrives on the bridge --pod-bridge-interface
  InterfaceNamePrefix  it arrives on an interface whose name starts with
                       --pod-interface-name-prefix`,
		Example: `  slipstream run --config /var/lib/kube-proxy/config.conf --hostname-override node-1
  slipstream run --manifests /etc/slipstream
  slipstream run --manifests examples/demo --cluster-cidr 10.244.0.0/16,fd00:244::/32`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd)
	return cmd
}

// noArgs rejects arguments, except empty ones, which kube-proxy accepts: pod manifests
// produce them from empty variables.
func noArgs(cmd *cobra.Command, args []string) error {
	return cobra.NoArgs(cmd, slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "" }))
}

func (o *runFlags) run(cmd *cobra.Command) error {
	switch o.version {
	case "false":
	case "true", "raw":
		fmt.Fprintln(cmd.OutOrStdout(), "slipstream", versionText(), "in the place of kube-proxy", config.KubernetesVersion)
		return nil
	default:
		return fmt.Errorf("--version: %q must be true, raw or false", o.version)
	}
	c, notes, err := o.complete(cmd.Flags())
	if err != nil {
		return err
	}
	if o.writeTo != "" {
		return o.writeConfig(c)
	}
	if err := logsapi.ValidateAndApplyAsField(&c.KubeProxy.Logging, c.Gates(), field.NewPath("logging")); err != nil {
		return err
	}
	defer klog.Flush()
	log := klog.FromContext(cmd.Context())
	of := log
	if o.file != "" {
		of = log.WithValues("file", o.file)
	}
	for _, n := range notes {
		of.V(n.Verbosity).Info("Configuration", "field", n.Field, "note", n.Text)
	}
	if o.cleanup {
		return cleanUp(cmd.Context(), c.ExcludeCIDRs(), false)
	}
	if o.initOnly {
		return initialize(cmd.Context(), c)
	}
	ctx, changed := context.WithCancelCause(cmd.Context())
	defer changed(nil)
	if o.file != "" {
		stop, err := watchConfig(ctx, o.file, changed)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		defer stop()
	}
	flags := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
	err = serve(ctx, &app{config: c, master: o.master, flags: flags})
	if why := context.Cause(ctx); err == nil && why != nil && cmd.Context().Err() == nil {
		return why
	}
	return err
}

// errConfigChanged ends the proxy so that its supervisor starts it again.
var errConfigChanged = errors.New("--config: the file has changed: exiting to be restarted with the new file")

// watchConfig calls changed when a configuration file is written to or renamed, until
// stop is called. As in kube-proxy, the replacement of the file is not noticed: this is how
// a ConfigMap changes in a pod, after which the administrator rolls out the DaemonSet.
func watchConfig(ctx context.Context, file string, changed context.CancelCauseFunc) (stop func(), err error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := w.Add(file); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", file, err), w.Close())
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case e, open := <-w.Events:
				if !open {
					return
				}
				if e.Has(fsnotify.Write) || e.Has(fsnotify.Rename) {
					changed(errConfigChanged)
				}
			case err := <-w.Errors:
				if err != nil {
					klog.FromContext(ctx).Error(err, "Could not watch the configuration file")
				}
			}
		}
	})
	return func() {
		if err := w.Close(); err != nil { // closes the channels
			klog.FromContext(ctx).Error(err, "Could not stop watching the configuration file")
		}
		watching.Wait()
	}, nil
}
