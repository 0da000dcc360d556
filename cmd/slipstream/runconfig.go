// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
)

// complete makes a valid configuration of file and flags. Notes are for the log.
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
		return nil, nil, fmt.Errorf("--hostname-override: %q is no name", o.hostname)
	}
	if c.Slipstream.Manifests != "" && o.master != "" {
		return nil, nil, errors.New("--manifests and --master: objects come from one of them, not from both")
	}
	modes := modeNames()
	if o.cleanup || o.initOnly || o.writeTo != "" {
		modes = config.Modes() // none is run, and what these do is the same in all
	}
	errs := c.Validate(modes)
	_, more := parseFastPath(&c.Slipstream.FastPath, field.NewPath("fastPath"))
	errs = append(errs, more...)
	for _, e := range errs {
		e.Field = o.flagFor(fs, e.Field)
	}
	return c, append(notes, c.Notes()...), errs.ToAggregate()
}

// fromFile takes the configuration from a file, and from those flags that go before
// it.
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
		if _, ok := fieldOf[f.Name]; ok {
			notes = append(notes, config.Note{Field: "--" + f.Name, Text: "is ignored beside --config"})
		}
	})
	return c, notes, err
}

// copyFlags sets those of the flags that define defines that are set in from.
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

// fromFlags takes the configuration from flags.
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
	k.IPTables.MasqueradeAll, k.NFTables.MasqueradeAll = o.masqueradeAll, o.masqueradeAll
	o.setPeriods(fs)
	c.Complete()
	k.HealthzBindAddress = served(o.healthz, k.HealthzBindAddress, o.healthzPort)
	k.MetricsBindAddress = served(o.metrics, "", o.metricsPort)
	if alone {
		standAlone(k, given)
	}
	return c, notes, nil
}

// setPeriods sets the mode's sync periods. The flags for iptables mode count in
// nftables mode too, which has none of its own.
func (o *runFlags) setPeriods(fs *pflag.FlagSet) {
	k := &o.config.KubeProxy
	if fs.Changed("iptables-sync-period") {
		k.IPTables.SyncPeriod.Duration = o.iptables.sync
		k.NFTables.SyncPeriod.Duration = o.iptables.sync
	}
	if fs.Changed("iptables-min-sync-period") {
		if period := o.iptables.minSync; period != 0 {
			k.IPTables.MinSyncPeriod.Duration, k.NFTables.MinSyncPeriod.Duration = period, period
		}
	}
	k.IPVS.SyncPeriod.Duration, k.IPVS.MinSyncPeriod.Duration = o.ipvs.sync, o.ipvs.minSync
}

// served is the address to serve on by a flag, and by the older flag for the port
// alone. Otherwise is what an empty address stands for.
func served(address, otherwise string, port int32) string {
	if address == "" {
		address = otherwise
	}
	if port == 0 {
		return ""
	}
	return config.WithPort(address, int(port))
}

// flagFor is the flag that has set a field, or the field if none has.
func (o *runFlags) flagFor(fs *pflag.FlagSet, path string) string {
	stem, index := path, ""
	if at := strings.IndexByte(path, '['); at >= 0 {
		stem, index = path[:at], path[at:]
	}
	if name, isPeriod := strings.CutPrefix(stem, "nftables."); isPeriod && strings.HasSuffix(name, "yncPeriod") {
		stem = "iptables." + name // whose flags count
	}
	tables := []map[string]string{beforeFile, fieldOf}
	if o.file != "" {
		tables = tables[:1]
	}
	for _, fields := range tables {
		for name, of := range fields {
			if of == stem && fs.Changed(name) {
				return "--" + name + index
			}
		}
	}
	return path
}

// writeConfig writes the configuration to the file of --write-config-to.
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

// unused tells which of the flags that were given make no difference.
func (o *runFlags) unused(fs *pflag.FlagSet) (notes []config.Note) {
	k := &o.config.KubeProxy
	fs.Visit(func(f *pflag.Flag) {
		if why := o.whyUnused(f.Name, string(k.Mode)); why != "" {
			notes = append(notes, config.Note{Field: "--" + f.Name, Text: "has no effect" + why})
		}
	})
	return notes
}

// whyUnused says why a flag makes no difference in a mode; "" if it does.
func (o *runFlags) whyUnused(name, mode string) string {
	switch {
	case name == "boot-id-file" || name == "machine-id-file":
		return ", nor had it with kube-proxy"
	case name == "config-sync-period":
		return ": what is watched is not told again in between"
	case name == "show-hidden-metrics-for-version":
		return ", as there are no hidden metrics"
	case name == "iptables-localhost-nodeports" && mode != config.IPTables && *o.config.KubeProxy.IPTables.LocalhostNodePorts:
		return " in nftables mode, which does not answer on NodePorts of loopback addresses"
	case name == "iptables-masquerade-bit" && mode == config.NFTables:
		return " in nftables mode, which has --nftables-masquerade-bit"
	case name == "nftables-masquerade-bit" && mode == config.IPTables:
		return " in iptables mode, which has --iptables-masquerade-bit"
	case strings.HasPrefix(name, "ipvs-") && name != "ipvs-exclude-cidrs" && mode != config.IPVS:
		return " in another mode than ipvs"
	}
	return ""
}

// standAlone has a proxy whose objects come from manifests, and that has no
// configuration file, leave the machine as it is but for what it is told by flags:
// nothing is served, and no parameter of the kernel or of this process is set.
func standAlone(k *kubeproxy.KubeProxyConfiguration, given func(flag string) bool) {
	if !given("healthz-bind-address") {
		k.HealthzBindAddress = ""
	}
	if !given("metrics-bind-address") {
		k.MetricsBindAddress = ""
	}
	if !given("oom-score-adj") {
		k.OOMScoreAdj = nil
	}
	if !given("conntrack-max-per-core") && !given("conntrack-min") {
		k.Conntrack.MaxPerCore = ptr.To[int32](0)
	}
	if !given("conntrack-tcp-timeout-established") {
		k.Conntrack.TCPEstablishedTimeout.Duration = 0
	}
	if !given("conntrack-tcp-timeout-close-wait") {
		k.Conntrack.TCPCloseWaitTimeout.Duration = 0
	}
}
