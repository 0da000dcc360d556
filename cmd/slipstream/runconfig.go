// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/expression"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// complete returns a valid configuration from the file and the flags. Notes are for the log.
func (o *runFlags) complete(fs *pflag.FlagSet) (c *config.Config, notes []config.Note, err error) {
	if o.file != "" {
		c, notes, err = o.fromFile(fs)
	} else {
		c, notes, err = o.fromFlags(fs)
	}
	if err != nil {
		return nil, nil, err
	}
	if name := strings.TrimSpace(o.hostname); name != "" {
		c.KubeProxy.HostnameOverride = strings.ToLower(name)
	} else if o.hostname != "" {
		return nil, nil, fmt.Errorf("--hostname-override: %q is not a valid name", o.hostname)
	}
	if c.Slipstream.Manifests != "" && o.master != "" {
		return nil, nil, errors.New("--manifests and --master cannot be combined")
	}
	if c.Slipstream.Manifests != "" && c.Slipstream.FastPath.ExcludePods != "" {
		return nil, nil, errPodsOfAPI
	}
	if c.Slipstream.Manifests != "" && c.Slipstream.SocketExcludePods != "" {
		return nil, nil, errors.New("--socket-exclude-pods (socketExcludePods)" + needPodsOfAPI)
	}
	errs := c.Validate()
	_, more := parseFastPath(&c.Slipstream.FastPath, field.NewPath("fastPath"))
	errs = append(errs, more...)
	if text := c.Slipstream.SocketExcludePods; text != "" {
		if _, err := expression.Pods(text); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("socketExcludePods"), text, err.Error()))
		}
	}
	ignored := &pflag.FlagSet{}
	if o.file != "" {
		ignored = &o.upstream
	}
	for _, e := range errs {
		e.Field = flagFor(fs, ignored, e.Field)
	}
	return c, append(notes, c.Notes()...), errs.ToAggregate()
}

// fromFile reads the configuration from a file, and from the flags that override it.
func (o *runFlags) fromFile(fs *pflag.FlagSet) (*config.Config, []config.Note, error) {
	c, notes, err := config.Load(o.file)
	if err != nil {
		return nil, nil, fmt.Errorf("--config: %w", err)
	}
	fromFile := c.KubeProxy.Logging.VModule
	c.KubeProxy.Logging.VModule = nil
	err = copyFlags(fs, func(to *pflag.FlagSet) {
		logsapi.AddFlags(&c.KubeProxy.Logging, to)
		addOwn(to, &c.Slipstream)
	})
	c.KubeProxy.Logging.VModule = append(c.KubeProxy.Logging.VModule, fromFile...)
	fs.Visit(func(f *pflag.Flag) {
		if o.upstream.Lookup(f.Name) != nil {
			notes = append(notes, config.Note{Field: "--" + f.Name, Text: "is ignored with --config"})
		}
	})
	return c, notes, err
}

// copyFlags copies the values of flags that are set in from to the flags that define adds.
func copyFlags(from *pflag.FlagSet, define func(*pflag.FlagSet)) (err error) {
	var to pflag.FlagSet
	define(&to)
	to.VisitAll(func(f *pflag.Flag) {
		if given := from.Lookup(f.Name); err == nil && given != nil && given.Changed {
			err = f.Value.Set(given.Value.String())
		}
	})
	return err
}

func (o *runFlags) fromFlags(fs *pflag.FlagSet) (*config.Config, []config.Note, error) {
	c := o.config
	k := &c.KubeProxy
	given := fs.Changed
	alone := c.Slipstream.Manifests != ""
	if alone && k.Mode == "" {
		k.Mode = config.NFTables
	}
	notes := o.unused(fs)
	if k.Mode == "" {
		notes = append(notes, config.Note{Field: "--proxy-mode", Text: config.ModeUnset})
		if given("iptables-masquerade-bit") && !given("nftables-masquerade-bit") {
			k.NFTables.MasqueradeBit = k.IPTables.MasqueradeBit
		}
	}
	k.NFTables.MasqueradeAll = k.IPTables.MasqueradeAll
	// The flags for iptables mode also apply to nftables mode, which has none of its own.
	if given("iptables-sync-period") {
		k.IPTables.SyncPeriod.Duration, k.NFTables.SyncPeriod.Duration = o.syncPeriod, o.syncPeriod
	}
	if given("iptables-min-sync-period") && o.minSyncPeriod != 0 {
		k.IPTables.MinSyncPeriod.Duration, k.NFTables.MinSyncPeriod.Duration = o.minSyncPeriod, o.minSyncPeriod
	}
	c.Complete()
	k.HealthzBindAddress = listenAddress(o.healthz, k.HealthzBindAddress, o.healthzPort)
	k.MetricsBindAddress = listenAddress(o.metrics, "", o.metricsPort)
	if alone {
		standAlone(k, given)
	}
	return c, notes, nil
}

// listenAddress returns the address to listen on from a flag and the deprecated flag for
// the port. An empty address stands for the default.
func listenAddress(address, byDefault string, port int32) string {
	if port == 0 {
		return ""
	}
	return config.WithPort(cmp.Or(address, byDefault), int(port))
}

// flagFor returns the flag that has set a field, or the path if no flag has.
func flagFor(fs, ignored *pflag.FlagSet, path string) string {
	stem, index := path, ""
	if at := strings.IndexByte(path, '['); at >= 0 {
		stem, index = path[:at], path[at:]
	}
	if name, isPeriod := strings.CutPrefix(stem, "nftables."); isPeriod && strings.HasSuffix(name, "yncPeriod") {
		stem = "iptables." + name // set by the flags for iptables mode
	}
	fs.Visit(func(f *pflag.Flag) {
		if ignored.Lookup(f.Name) == nil && sets(f.Name, stem) {
			path = "--" + f.Name + index
		}
	})
	return path
}

func (o *runFlags) writeConfig(c *config.Config) error {
	data, err := c.YAML()
	if err == nil {
		err = os.WriteFile(o.writeTo, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

func (o *runFlags) unused(fs *pflag.FlagSet) (notes []config.Note) {
	k := &o.config.KubeProxy
	fs.Visit(func(f *pflag.Flag) {
		if why := o.whyUnused(f.Name, string(k.Mode)); why != "" {
			notes = append(notes, config.Note{Field: "--" + f.Name, Text: "has no effect" + why})
		}
	})
	return notes
}

// whyUnused returns why a flag has no effect in a mode, or "" if it has one.
func (o *runFlags) whyUnused(name, mode string) string {
	t := config.TraitsOf(mode)
	switch {
	case name == "boot-id-file" || name == "machine-id-file":
		return ": kube-proxy dropped it in v1.37"
	case name == "config-sync-period":
		return ": watched objects are not delivered again periodically"
	case name == "show-hidden-metrics-for-version":
		return ", as there are no hidden metrics"
	case name == "iptables-localhost-nodeports" && !t.KernelLocalhost && *o.config.KubeProxy.IPTables.LocalhostNodePorts:
		return " in nftables mode, which has the feature gate KubeProxyNFTablesLocalhostNodePorts"
	case name == "iptables-masquerade-bit" && t.NFTablesBlock:
		return " in nftables mode, which has --nftables-masquerade-bit"
	case name == "nftables-masquerade-bit" && t.IPTables:
		return " in iptables mode, which has --iptables-masquerade-bit"
	case name == "ipvs-scheduler" && (t.Algorithms || mode == ""): // see config.Config.Balancing
	case strings.HasPrefix(name, "ipvs-") && name != "ipvs-exclude-cidrs" && !t.VirtualServers:
		return " in modes other than ipvs"
	}
	return ""
}

// standAlone changes the defaults for a proxy with manifests and without a configuration
// file: unless flags say otherwise, it serves nothing and sets no parameters of the kernel
// or of this process.
func standAlone(k *kubeproxy.KubeProxyConfiguration, given func(flag string) bool) {
	for flag, leave := range map[string]func(){
		"healthz-bind-address":              func() { k.HealthzBindAddress = "" },
		"metrics-bind-address":              func() { k.MetricsBindAddress = "" },
		"oom-score-adj":                     func() { k.OOMScoreAdj = nil },
		"conntrack-tcp-timeout-established": func() { k.Conntrack.TCPEstablishedTimeout.Duration = 0 },
		"conntrack-tcp-timeout-close-wait":  func() { k.Conntrack.TCPCloseWaitTimeout.Duration = 0 },
	} {
		if !given(flag) {
			leave()
		}
	}
	if !given("conntrack-max-per-core") && !given("conntrack-min") {
		k.Conntrack.MaxPerCore = new(int32)
	}
}
