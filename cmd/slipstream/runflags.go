// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// runFlags are the flags of "slipstream run". Those that kube-proxy has too go by
// its names. Most set a field of the configuration; fieldOf says which.
type runFlags struct {
	config *config.Config // what they set

	file, writeTo      string
	master             string
	hostname           string
	cleanup, initOnly  bool
	version            string
	masqueradeAll      bool
	healthz, metrics   string
	healthzPort        int32
	metricsPort        int32
	iptables, ipvs     periods
	bootID, machineIDs string
}

// periods are flags that kube-proxy has for each mode, and a field for the mode in
// use.
type periods struct{ sync, minSync time.Duration }

// offloadThreshold is KEP-4963's name for the flag.
const offloadThreshold = "offload-packet-threshold"

// add defines the flags.
func (o *runFlags) add(fs *pflag.FlagSet) {
	o.config = config.New()
	k := &o.config.KubeProxy
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // kube-proxy takes _ for -
	fs.StringVar(&o.file, "config", "", "configuration file (KubeProxyConfiguration, and SlipstreamConfiguration in a second document); kube-proxy's flags for what is in it are ignored then")
	fs.StringVar(&o.writeTo, "write-config-to", "", "write the configuration with all its defaults to this file, and exit")
	fs.BoolVar(&o.cleanup, "cleanup", false, "remove what is programmed, as 'slipstream cleanup' does, and exit")
	fs.BoolVar(&o.initOnly, "init-only", false, "set the kernel's parameters that take full privileges, and exit")
	fs.StringVar(&o.version, "version", "false", "true or raw: print the version and exit")
	fs.Lookup("version").NoOptDefVal = "true"
	fs.StringVar(&o.hostname, "hostname-override", "", "name of this node, as its Node object and EndpointSlices write it (default: the host's name); goes before --config")
	o.addAPI(fs, k)
	o.addServing(fs, k)
	o.addMode(fs, k)
	o.addIPVS(fs, k)
	o.addTraffic(fs, k)
	addConntrack(fs, &k.Conntrack)
	addOwn(fs, &o.config.Slipstream)
	logsapi.AddFlags(&k.Logging, fs)
	// cAdvisor's, which kube-proxy has by accident.
	fs.StringVar(&o.bootID, "boot-id-file", "", "no effect")
	fs.StringVar(&o.machineIDs, "machine-id-file", "", "no effect")
}

// addOwn defines Slipstream's own flags.
func addOwn(fs *pflag.FlagSet, c *config.SlipstreamConfiguration) {
	fs.StringVar(&c.Manifests, "manifests", c.Manifests, "directory of manifests to take objects from, in place of the Kubernetes API")
	fs.Var(period{&c.MinSyncPeriod}, "min-sync-period", "least time between two updates of the kernel; the first change after a quiet time does not wait (default "+config.DefaultMinSyncPeriod.String()+")")
	fs.Var(period{&c.CheckPeriod}, "check-period", "how often to look whether somebody else has damaged what was programmed")
	fs.Var(period{&c.VerifyPeriod}, "verify-period", "how often to compare all that the kernel has with what was programmed, in the background, as 'slipstream verify' does, and to repair it; 0 for never")
	addFastPath(fs, &c.FastPath, offloadThreshold)
}

// period is a flag for a period that may be left open.
type period struct{ to **metav1.Duration }

func (p period) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err == nil {
		*p.to = &metav1.Duration{Duration: d}
	}
	return err
}

func (p period) String() string {
	if p.to == nil || *p.to == nil {
		return ""
	}
	return (*p.to).Duration.String()
}

func (p period) Type() string { return "duration" }
