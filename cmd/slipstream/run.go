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
kernel's rules, nftables or iptables, in line with them until it is stopped. What it has programmed
stays when it stops, and is taken over without a gap when it starts again;
'slipstream cleanup' removes it.

It is a drop-in for kube-proxy: it takes its configuration file (--config) and its
flags, and does so too when it is started under the name kube-proxy. What it does
not support it refuses, or names in the log. docs/configuration.md has all of it,
and the settings that are Slipstream's own.

Objects come from one of
  the Kubernetes API  that --kubeconfig, --master or the configuration file names,
                      or that of the cluster whose pod this is
  --manifests         a directory of manifests (*.yaml, *.yml, *.json), as for
                      'kubectl apply -f DIR'. It is watched: a file that is saved
                      is programmed at once. A file or an object with a mistake
                      in it is reported in one line, and what it last said well
                      stays in force. Without --config, nothing is served then
                      and nothing else of the machine is set, unless by flags.

NodePorts, and the ports for health checks of load balancers, answer on the
addresses of this node that --nodeport-addresses selects:
  primary  the first address of each family in the status of the Node object that
           is named as this node, an InternalIP if there is one; without that
           Node object, they answer nowhere
  ranges   the addresses on this node's interfaces that are in one of them; of a
           family without a range, all
Addresses that come and go are followed. On loopback addresses, NodePorts answer in
iptables mode only, on IPv4 ones; not with --iptables-localhost-nodeports=false.

Traffic to ClusterIPs is masqueraded unless it comes from a pod of this node. How
to tell is what --detect-local-mode says:
  ClusterCIDR          its source is in --cluster-cidr; in a family without such a
                       range, nothing is masqueraded
  NodeCIDR             its source is in spec.podCIDRs of the Node object that is
                       named as this node
  BridgeInterface      it arrives on the bridge --pod-bridge-interface
  InterfaceNamePrefix  it arrives on an interface whose name starts with
                       --pod-interface-name-prefix`,
		Example: `  slipstream run --config /var/lib/kube-proxy/config.conf --hostname-override node-1
  slipstream run --manifests /etc/slipstream
  slipstream run --manifests examples/demo --cluster-cidr 10.244.0.0/16,fd00:244::/32`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd.Flags())
	return cmd
}

// noArgs refuses all arguments but empty ones, which kube-proxy takes: manifests of
// pods have them where a variable is empty.
func noArgs(cmd *cobra.Command, args []string) error {
	return cobra.NoArgs(cmd, slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "" }))
}

// run does what the flags say.
func (o *runFlags) run(cmd *cobra.Command) error {
	switch o.version {
	case "false":
	case "true", "raw":
		fmt.Fprintln(cmd.OutOrStdout(), "slipstream", versionText(), "in the place of kube-proxy", config.KubernetesVersion)
		return nil
	default:
		return fmt.Errorf("--version: %q is none of true, raw and false", o.version)
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
	for _, n := range notes {
		klog.V(klog.Level(n.Verbosity)).InfoS("Configuration", "field", n.Field, "note", n.Text)
	}
	if o.cleanup {
		return cleanUp(cmd.Context(), c.ExcludeCIDRs(), false)
	}
	if o.initOnly {
		return initialize(c)
	}
	ctx, changed := context.WithCancelCause(cmd.Context())
	defer changed(nil)
	if o.file != "" {
		stop, err := watchConfig(o.file, changed)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		defer stop()
	}
	err = serve(ctx, serving{config: c, master: o.master, flags: flagValues(cmd.Flags())})
	if why := context.Cause(ctx); err == nil && why != nil && cmd.Context().Err() == nil {
		return why
	}
	return err
}

// flagValues are the flags and their values.
func flagValues(fs *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// errConfigChanged ends a proxy so that whoever started it starts it again.
var errConfigChanged = errors.New("--config: the file has changed: ending, to be started with the new one")

// watchConfig calls changed when a configuration file is written to or renamed, until
// stop is called. As with kube-proxy, a file that is replaced as a whole is not noticed:
// that is how a ConfigMap changes in a pod, of which an administrator rolls out the
// DaemonSet again when it suits them.
func watchConfig(file string, changed context.CancelCauseFunc) (stop func(), err error) {
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
					klog.ErrorS(err, "Could not watch the configuration file")
				}
			}
		}
	})
	return func() {
		if err := w.Close(); err != nil { // which closes the channels
			klog.ErrorS(err, "Could not stop watching the configuration file")
		}
		watching.Wait()
	}, nil
}
