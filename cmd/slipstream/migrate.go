// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
	"github.com/slipstream-proxy/slipstream/internal/migrate"
	"github.com/slipstream-proxy/slipstream/internal/node/loopback"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// errChanges ends the process with status 2, without a message.
var errChanges = errors.New("there are differences")

type migrateOptions struct {
	file, mode, output           string
	kubeconfig, master, manifest string
	hostname                     string
	flags                        []string // of kube-proxy
}

func newMigrate() *cobra.Command {
	var o migrateOptions
	cmd := &cobra.Command{
		Use:   "migrate [flags] [-- kube-proxy's flags]",
		Short: "Say what changes when Slipstream takes kube-proxy's place",
		Long: `Migrate compares kube-proxy on this node with Slipstream, in each mode: for the node, and
for each Service that changes. Then it prints the configuration to use in the recommended
mode. It changes nothing, except that the kernel may load modules when it is asked what it
supports. Run it on a node, with CAP_NET_ADMIN, while kube-proxy runs.

It reads kube-proxy's configuration from --config: its configuration file, or the manifest of its
static pod (of RKE2 and kops), whose flags count. Flags may also follow --, as k3s logs them. Without
either it asks kube-proxy itself, at 127.0.0.1:10249/configz, if that is v1.36 or later. If kube-proxy
does not answer so, migrate reads the ConfigMap kube-system/kube-proxy (of kubeadm) or
kube-system/kube-proxy-config (of EKS).
Services come from the Kubernetes API: that of --kubeconfig or --master, of the configuration file,
or of the cluster in which this is a pod; or from --manifests.

Each finding has one of these severities:

  same     nothing changes, because the configuration below says so
  differs  something behaves differently
  stops    something stops working
  action   look at something: a firewall, a program, a setting

The exit code is 0 if nothing changes for users, 2 if something changes in the recommended mode
(or in that of --mode), and 1 after an error, or if no mode is possible on this node.`,
		Example: `  slipstream migrate --kubeconfig admin.conf
  slipstream migrate --config /var/lib/kube-proxy/config.conf --mode nftables -o json
  slipstream migrate --config /var/lib/rancher/rke2/agent/pod-manifests/kube-proxy.yaml
  slipstream migrate -- --proxy-mode=ipvs --cluster-cidr=10.42.0.0/16`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.flags = args; cmd.ArgsLenAtDash() != 0 {
				if err := cobra.NoArgs(cmd, args); err != nil {
					return err
				}
			}
			switch {
			case len(o.flags) > 0 && o.file != "":
				return errors.New("--config cannot be combined with kube-proxy's flags")
			case o.manifest != "" && o.file == "" && len(o.flags) == 0:
				return errors.New("--manifests needs --config, or kube-proxy's flags, as there is no ConfigMap to read")
			case o.manifest != "" && o.master+o.kubeconfig != "":
				return errors.New("--manifests cannot be combined with --kubeconfig and --master")
			}
			r, err := compareKubeProxy(cmd.Context(), &o)
			if err != nil {
				return err
			}
			switch err := printAs(cmd.OutOrStdout(), o.output, r, r.Write); {
			case err != nil:
				return err
			case r.Recommended == "":
				return errors.New("migrate: no mode is possible on this node")
			case r.Changes():
				return errChanges
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.file, "config", "", "kube-proxy's configuration file, or its static pod's manifest (default: that of the kube-proxy that runs here, or a ConfigMap)")
	addChoice(cmd, "mode", "", &choice{&o.mode, modeNames()}, "only this mode of Slipstream")
	addOutput(cmd, &o.output)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the Kubernetes API (default: that of --config)")
	f.StringVar(&o.master, "master", "", "URL of the Kubernetes API, instead of the kubeconfig's")
	f.StringVar(&o.manifest, "manifests", "", "directory of manifests to read Services from, instead of the Kubernetes API; needs --config")
	f.StringVar(&o.hostname, "hostname-override", "", "name of this node's Node object (default: that of --config, or the host name)")
	return cmd
}

// compareKubeProxy reads what a comparison depends on, and compares.
func compareKubeProxy(ctx context.Context, o *migrateOptions) (*migrate.Report, error) {
	text, from, err := readKubeProxy(ctx, o)
	if err != nil {
		return nil, err
	}
	c, err := migrate.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	node, err := nodeName(cmp.Or(o.hostname, c.KubeProxy.HostnameOverride))
	if err != nil {
		return nil, err
	}
	in, err := readCluster(ctx, c.Config, o, node)
	if err != nil {
		return nil, err
	}
	interfaces, err := netif.Namespace(0).List()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		if i.Name != "kube-ipvs0" { // which has those of Services
			in.Addresses = append(in.Addresses, i.Addresses...)
		}
	}
	for _, p := range []desired.Protocol{desired.TCP, desired.UDP} {
		bound, err := loopback.Listening(p)
		if err != nil {
			return nil, err
		}
		in.Listeners = slices.AppendSeq(in.Listeners, maps.Keys(bound))
	}
	slices.SortFunc(in.Listeners, netip.AddrPort.Compare)
	in.Skips = firewall.Skips(ctx)
	which := config.Modes()
	if o.mode != "" {
		which = []string{o.mode}
	}
	in.Probe = func(c *config.Config) (migrate.Kernel, error) { return askKernel(ctx, c) }
	return migrate.Compare(c, in, which)
}

// readKubeProxy reads kube-proxy's configuration and says where it is from.
func readKubeProxy(ctx context.Context, o *migrateOptions) (text []byte, from string, err error) {
	if len(o.flags) > 0 {
		if text, err = configured(o.flags); err != nil {
			err = fmt.Errorf("kube-proxy's flags: %w", err)
		}
		return text, "kube-proxy's flags", err
	}
	if o.file != "" {
		text, err = os.ReadFile(o.file)
		var pod corev1.Pod
		if err == nil && yaml.Unmarshal(text, &pod) == nil && pod.Kind == "Pod" {
			text, err = configured(flagsOf(&pod))
			if err != nil {
				err = fmt.Errorf("%s: %w", o.file, err)
			}
		}
		if err != nil {
			err = fmt.Errorf("--config: %w", err)
		}
		return text, "--config: " + o.file, err
	}
	if text := askKubeProxy(ctx); text != nil {
		return text, "kube-proxy's " + configz, nil
	}
	return readConfigMap(ctx, o)
}

// flagsOf returns the flags of the kube-proxy of a pod, which another program may start, as in kops; nil if there is none.
func flagsOf(pod *corev1.Pod) []string {
	for _, c := range pod.Spec.Containers {
		line := slices.Concat(c.Command, c.Args)
		if i := slices.IndexFunc(line, func(word string) bool { return path.Base(word) == "kube-proxy" }); i >= 0 {
			return line[i+1:]
		}
	}
	return nil
}

// configured returns the configuration that kube-proxy's flags stand for. It has only fields that differ from the
// defaults, as a file that somebody wrote would, and the mode.
func configured(flags []string) ([]byte, error) {
	if len(flags) == 0 {
		return nil, errors.New("there are no flags of a kube-proxy in it")
	}
	fields := func(flags []string) (all map[string]any, err error) {
		var o runFlags
		var cmd cobra.Command
		o.add(&cmd)
		fs := cmd.Flags()
		fs.ParseErrorsAllowlist.UnknownFlags = true // those of earlier versions, such as for logs
		if err := fs.Parse(flags); err != nil {
			return nil, err
		}
		if o.file != "" {
			return nil, fmt.Errorf("its flags name the configuration file %s: give that to --config", o.file)
		}
		o.config.KubeProxy.Mode = cmp.Or(o.config.KubeProxy.Mode, config.IPTables)
		c, _, err := o.complete(fs)
		if err != nil {
			return nil, err
		}
		return runtime.DefaultUnstructuredConverter.ToUnstructured(&c.KubeProxy)
	}
	all, err := fields(flags)
	if err != nil {
		return nil, err
	}
	defaults, err := fields(nil)
	if err != nil {
		return nil, err
	}
	mode := all["mode"]
	dropEqual(all, defaults)
	all["apiVersion"], all["kind"], all["mode"] = kubeproxyconfig.SchemeGroupVersion.String(), "KubeProxyConfiguration", mode
	return yaml.Marshal(all)
}

// dropEqual deletes the fields that are as in defaults.
func dropEqual(from, defaults map[string]any) {
	for name, value := range from {
		if reflect.DeepEqual(value, defaults[name]) {
			delete(from, name)
			continue
		}
		block, _ := value.(map[string]any)
		other, _ := defaults[name].(map[string]any)
		dropEqual(block, other)
	}
}

// configz is where kube-proxy shows its configuration, by default.
const configz = "http://127.0.0.1:10249/configz"

// askKubeProxy asks the kube-proxy of this node for its configuration. It returns nil if there is no answer, or
// one in the form of internal types, as older versions have it.
func askKubeProxy(ctx context.Context) []byte {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, configz, nil)
	if err != nil {
		return nil
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	var all map[string]map[string]any
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&all); err != nil {
		return nil
	}
	c := all[kubeproxyconfig.GroupName]
	if c["mode"] == nil || all[config.GroupVersion.Group] != nil { // that is Slipstream. The process of k3s has others
		return nil
	}
	c["apiVersion"], c["kind"] = kubeproxyconfig.SchemeGroupVersion.String(), "KubeProxyConfiguration"
	text, err := json.Marshal(c)
	if err != nil {
		return nil
	}
	return text
}

// readConfigMap reads kube-proxy's configuration from a ConfigMap.
func readConfigMap(ctx context.Context, o *migrateOptions) (text []byte, from string, err error) {
	const namespace = "kube-system"
	c := config.New()
	c.KubeProxy.ClientConnection.Kubeconfig = o.kubeconfig
	connection, err := api.ClientConfig(c.KubeProxy.ClientConnection, o.master, version)
	if err != nil {
		return nil, "", err
	}
	client, err := api.NewClient(connection)
	if err != nil {
		return nil, "", err
	}
	get, err := client.For(corev1.SchemeGroupVersion, &corev1.ConfigMap{})
	if err != nil {
		return nil, "", err
	}
	var missing []string
	for _, at := range [][2]string{{"kube-proxy", "config.conf"}, {"kube-proxy-config", "config"}} {
		var m corev1.ConfigMap
		from = "ConfigMap " + namespace + "/" + at[0]
		err := get.Get().Namespace(namespace).Resource("configmaps").Name(at[0]).Do(ctx).Into(&m)
		switch text := m.Data[at[1]]; {
		case apierrors.IsNotFound(err):
			missing = append(missing, from+": "+err.Error())
		case err != nil:
			return nil, "", fmt.Errorf("%s: %w", from, err)
		case text == "":
			missing = append(missing, from+": it has no "+at[1])
		default:
			return []byte(text), from, nil
		}
	}
	return nil, "", fmt.Errorf("%s (use --config if kube-proxy's configuration is a file)", strings.Join(missing, "; "))
}

// readCluster reads the Services and this node's Node.
func readCluster(ctx context.Context, c *config.Config, o *migrateOptions, node string) (in migrate.Input, err error) {
	from := *c
	from.Slipstream.Manifests = o.manifest
	if o.kubeconfig != "" || o.file == "" && len(o.flags) == 0 { // the path in the ConfigMap is one in kube-proxy's pod
		from.KubeProxy.ClientConnection.Kubeconfig = o.kubeconfig
	}
	objects, _, err := newSource(&from, o.master, node, logProblems(klog.FromContext(ctx)))
	if err != nil {
		return in, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deliveryTimeout, errors.New("the Services were not delivered in time"))
	defer cancel()
	services, synced := map[string]*corev1.Service{}, false
	err = objects.Run(ctx, func(batch []source.Event) {
		for _, e := range batch {
			switch object := e.Object.(type) {
			case *corev1.Service:
				services[object.Namespace+"/"+object.Name] = object
				if e.Type == source.Delete {
					delete(services, object.Namespace+"/"+object.Name)
				}
			case *corev1.Node:
				if object.Name == node {
					in.Node = object
				}
			}
			if e.Type == source.Synced {
				synced = true
				cancel()
			}
		}
	})
	in.Services = slices.Collect(maps.Values(services))
	switch {
	case synced:
		return in, nil
	case err != nil:
		return in, fmt.Errorf("the Services are not known: source of objects: %w", err)
	}
	return in, context.Cause(ctx)
}

// askKernel says what the node lacks for a configuration.
func askKernel(ctx context.Context, c *config.Config) (k migrate.Kernel, err error) {
	if k.Err = c.Validate().ToAggregate(); k.Err != nil {
		return k, nil
	}
	b, err := modes[c.Mode()].open(ctx, c)
	if err == nil {
		k.Missing, err = b.probeToVerify(ctx)
		balancing, _ := c.Balancing()
		k.NoAlgorithm = b.Supports(balancing.Algorithm)
		err = errors.Join(err, b.Close())
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return k, needsNetAdmin(err)
	case ctx.Err() != nil:
		return k, err
	}
	k.Err = err
	var without desired.Families
	for _, what := range k.Missing {
		without[what.Family] = true
	}
	if without[desired.IPv4] && without[desired.IPv6] {
		k.Err = errors.New(k.Missing[0].String())
	}
	return k, nil
}
