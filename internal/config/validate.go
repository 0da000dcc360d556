// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
)

// Validate returns all errors in a complete configuration, each with the field's path in
// the file. The caller validates Slipstream.FastPath, as this package does not import CEL.
func (c *Config) Validate() (errs field.ErrorList) {
	k := &c.KubeProxy
	add := func(more ...*field.Error) { errs = append(errs, more...) }
	add(c.validateMode()...)
	add(validateOfMode(k)...)
	add(validateGates(k.FeatureGates, field.NewPath("featureGates"))...)
	add(invalid(k.ClientConnection.Burst < 0, "clientConnection.burst", k.ClientConnection.Burst, notNegative)...)
	_, isAddress := ParseAddr(k.BindAddress)
	add(invalid(!isAddress, "bindAddress", k.BindAddress, "must be an IP address")...)
	add(validateHostPort(field.NewPath("healthzBindAddress"), k.HealthzBindAddress)...)
	add(validateHostPort(field.NewPath("metricsBindAddress"), k.MetricsBindAddress)...)
	const previous = "1.36" // minor version before KubernetesVersion, the one that kube-proxy accepts
	hidden := k.ShowHiddenMetricsForVersion
	add(invalid(hidden != "" && hidden != previous, "showHiddenMetricsForVersion", hidden, "must be empty or "+previous)...)
	add(validateDetectLocal(k)...)
	add(c.ValidateNodePortAddresses()...)
	// kube-proxy's leftovers are removed in every mode, except in these ranges.
	_, exclude := ParseExcludeCIDRs(field.NewPath("ipvs", "excludeCIDRs"), k.IPVS.ExcludeCIDRs)
	add(exclude...)
	score := ptr.Deref(k.OOMScoreAdj, 0)
	add(invalid(score < -1000 || score > 1000, "oomScoreAdj", score, "must be from -1000 to 1000")...)
	add(validateConntrack(&k.Conntrack)...)
	add(invalid(k.ConfigSyncPeriod.Duration <= 0, "configSyncPeriod", k.ConfigSyncPeriod.Duration.String(), positive)...)
	add(logsapi.Validate(&k.Logging, c.Gates(), field.NewPath("logging"))...)
	add(c.validateOwn()...)
	return errs
}

// invalid is the error about a field if it is invalid.
func invalid(is bool, path string, value any, detail string) field.ErrorList {
	if !is {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath(path), value, detail)}
}

// Error texts for numbers and periods.
const (
	positive    = "must be greater than 0"
	notNegative = "must not be negative"
)

func (c *Config) validateMode() field.ErrorList {
	modes, mode, detail := slices.Sorted(slices.Values(Modes())), c.Mode(), ""
	if !c.Gates().Enabled(ipvsMode) {
		modes = []string{IPTables, NFTables}
		if mode == IPVS {
			detail = "is disabled by the feature gate " + ipvsMode + ": "
		}
	}
	if slices.Contains(modes, mode) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("mode"), mode, detail+"must be one of "+strings.Join(modes, ", "))}
}

// validateOfMode checks the blocks of the modes. Like kube-proxy, it checks only
// iptables.masqueradeBit of modes that are not in use.
func validateOfMode(k *kubeproxy.KubeProxyConfiguration) (errs field.ErrorList) {
	m := ofMode(k, k.Mode)
	blocks := []perMode{m}
	if m.block != "iptables" {
		blocks = append(blocks, ofMode(k, IPTables))
	}
	for _, b := range blocks {
		bit := ptr.Deref(*b.masqueradeBit, 0)
		errs = append(errs, invalid(bit < 0 || bit > 31, b.block+".masqueradeBit", bit, "must be from 0 to 31")...)
	}
	period := func(name string, wrong bool, d metav1.Duration, detail string) {
		errs = append(errs, invalid(wrong, m.block+"."+name, d.Duration.String(), detail)...)
	}
	period("syncPeriod", m.syncPeriod.Duration <= 0, *m.syncPeriod, positive)
	period("minSyncPeriod", m.minSyncPeriod.Duration < 0, *m.minSyncPeriod, notNegative)
	if m.block == "ipvs" {
		v := &k.IPVS
		for name, d := range map[string]metav1.Duration{"tcpTimeout": v.TCPTimeout, "tcpFinTimeout": v.TCPFinTimeout, "udpTimeout": v.UDPTimeout} {
			period(name, d.Duration < 0, d, notNegative)
		}
	}
	return append(errs, m.validateMin(m.block+".minSyncPeriod", m.minSyncPeriod.Duration)...)
}

// validateMin checks that a minimum period is not longer than the mode's sync period.
func (m perMode) validateMin(path string, d time.Duration) field.ErrorList {
	most := m.syncPeriod.Duration
	return invalid(d > most && most > 0, path, d.String(), fmt.Sprintf("must not be greater than %s.syncPeriod (%v)", m.block, most))
}

func validateConntrack(c *kubeproxy.KubeProxyConntrackConfiguration) field.ErrorList {
	period := func(name string, d *metav1.Duration) field.ErrorList {
		is := ptr.Deref(d, metav1.Duration{}).Duration
		return invalid(is < 0, "conntrack."+name, is.String(), notNegative)
	}
	return slices.Concat(
		invalid(ptr.Deref(c.MaxPerCore, 0) < 0, "conntrack.maxPerCore", c.MaxPerCore, notNegative),
		invalid(ptr.Deref(c.Min, 0) < 0, "conntrack.min", c.Min, notNegative),
		period("tcpEstablishedTimeout", c.TCPEstablishedTimeout),
		period("tcpCloseWaitTimeout", c.TCPCloseWaitTimeout),
		period("udpTimeout", &c.UDPTimeout),
		period("udpStreamTimeout", &c.UDPStreamTimeout),
	)
}

// validateOwn checks Slipstream's own settings, except fastPath (see [Config.Validate]).
func (c *Config) validateOwn() (errs field.ErrorList) {
	s := &c.Slipstream
	add := func(is bool, path string, value any, detail string) {
		errs = append(errs, invalid(is, path, value, detail)...)
	}
	if d := s.MinSyncPeriod; d != nil {
		add(d.Duration <= 0, "minSyncPeriod", d.Duration.String(), positive)
		errs = append(errs, ofMode(&c.KubeProxy, c.KubeProxy.Mode).validateMin("minSyncPeriod", d.Duration)...)
	}
	if d := s.CheckPeriod; d != nil {
		add(d.Duration <= 0, "checkPeriod", d.Duration.String(), positive)
	}
	add(s.VerifyPeriod.Duration < 0, "verifyPeriod", s.VerifyPeriod.Duration.String(), notNegative)
	if _, err := desired.ParseScheduler(s.Scheduler); err != nil && s.Scheduler != "" {
		add(true, "scheduler", s.Scheduler, err.Error())
	}
	if _, err := c.Annotated(); err != nil {
		add(true, "serviceAnnotations", s.ServiceAnnotations, "must be all, none or a selector of labels: "+err.Error())
	}
	for i, text := range s.ExternalIPRanges {
		if _, err := netip.ParsePrefix(text); err != nil {
			add(true, fmt.Sprintf("externalIPRanges[%d]", i), text, "not a range of IP addresses: "+err.Error())
		}
	}
	add(s.NamespaceSlots < 0, "namespaceSlots", s.NamespaceSlots, notNegative)
	add(s.NamespaceElements < 0, "namespaceElements", s.NamespaceElements, notNegative)
	add(s.MaglevTableSize != 0 && !slices.Contains(desired.TableSizes(), s.MaglevTableSize), "maglevTableSize", s.MaglevTableSize, fmt.Sprintf("must be one of %d", desired.TableSizes()))
	add(!filepath.IsAbs(s.StatusSocket), "statusSocket", s.StatusSocket, "must be an absolute path")
	add(s.PodSocket != "" && !filepath.IsAbs(s.PodSocket), "podSocket", s.PodSocket, "must be an absolute path")
	add(s.PodSocket != "" && filepath.Dir(s.PodSocket) == filepath.Dir(s.StatusSocket), "podSocket", s.PodSocket, "must be in another directory than statusSocket, as pods get it")
	errs = append(errs, validateHostPort(field.NewPath("uiBindAddress"), s.UIBindAddress)...)
	errs = append(errs, c.validateHTTP()...)
	errs = append(errs, c.validateSockets()...)
	add(s.Manifests != "" && c.KubeProxy.ClientConnection.Kubeconfig != "", "manifests", s.Manifests, "cannot be combined with the Kubernetes API (clientConnection.kubeconfig)")
	return errs
}

// AuthorizedByAPI is a value of httpAuthorization.
const AuthorizedByAPI = "api"

func (c *Config) validateHTTP() (errs field.ErrorList) {
	s := &c.Slipstream
	if (s.TLSCertFile == "") != (s.TLSPrivateKeyFile == "") {
		errs = append(errs, field.Invalid(field.NewPath("tlsPrivateKeyFile"), s.TLSPrivateKeyFile, "goes with tlsCertFile: set both or none"))
	}
	switch path := field.NewPath("httpAuthorization"); {
	case s.HTTPAuthorization == "" || s.HTTPAuthorization == "none":
	case s.HTTPAuthorization != AuthorizedByAPI:
		errs = append(errs, field.NotSupported(path, s.HTTPAuthorization, []string{"none", AuthorizedByAPI}))
	case s.TLSCertFile == "":
		errs = append(errs, field.Invalid(path, s.HTTPAuthorization, "needs tlsCertFile: tokens must not be sent in the clear"))
	case s.Manifests != "":
		errs = append(errs, field.Invalid(path, s.HTTPAuthorization, "needs the Kubernetes API, and there is none with manifests"))
	}
	return errs
}

// Values of socketLoadBalancing.
const (
	SocketsOff = "off"
	SocketsTCP = "tcp"
)

// validateSockets refuses what connections without translation cannot have.
func (c *Config) validateSockets() field.ErrorList {
	path, value := field.NewPath("socketLoadBalancing"), c.Slipstream.SocketLoadBalancing
	switch {
	case value == SocketsOff:
		return nil
	case value != SocketsTCP:
		return field.ErrorList{field.NotSupported(path, value, []string{SocketsOff, SocketsTCP})}
	case c.Traits().VirtualServers:
		return field.ErrorList{field.Invalid(path, value, "cannot be combined with mode ipvs, whose schedulers choose the endpoint")}
	case c.MasqueradeAll():
		return field.ErrorList{field.Invalid(path, value, "cannot be combined with masqueradeAll: there is no translation that could masquerade")}
	}
	return nil
}

// detectLocalModes are the values of detectLocalMode, the default first.
var detectLocalModes = []kubeproxy.LocalMode{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}

// validateDetectLocal checks the settings by which traffic of this node's pods is
// recognized. As in kube-proxy, settings that the mode does not use are not checked.
func validateDetectLocal(k *kubeproxy.KubeProxyConfiguration) field.ErrorList {
	path := field.NewPath("detectLocal")
	switch k.DetectLocalMode {
	case "ClusterCIDR":
		return validateClusterCIDR(k.ClusterCIDR)
	case "BridgeInterface":
		return validateInterface(path.Child("bridgeInterface"), k.DetectLocal.BridgeInterface, k.DetectLocalMode)
	case "InterfaceNamePrefix":
		return validateInterface(path.Child("interfaceNamePrefix"), k.DetectLocal.InterfaceNamePrefix, k.DetectLocalMode)
	}
	if slices.Contains(detectLocalModes, k.DetectLocalMode) {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath("detectLocalMode"), k.DetectLocalMode, detectLocalModes)}
}

// validateClusterCIDR accepts one range for each family, or the empty string.
func validateClusterCIDR(text string) (errs field.ErrorList) {
	path := field.NewPath("clusterCIDR")
	if text == "" {
		return nil
	}
	families := map[bool]string{}
	for _, one := range strings.Split(text, ",") {
		p, ok := ParseRange(one)
		if !ok {
			errs = append(errs, field.Invalid(path, one, notRange))
			continue
		}
		if other, both := families[p.Addr().Is4()]; both {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("%s and %s are of the same family", other, one)))
		}
		families[p.Addr().Is4()] = one
	}
	return errs
}

// maxInterface is the maximum length of an interface name in bytes: IFNAMSIZ without the
// final zero.
const maxInterface = 15

// validateInterface checks an interface name or a prefix of one.
func validateInterface(path *field.Path, name string, mode kubeproxy.LocalMode) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, fmt.Sprintf("detectLocalMode %s requires it", mode))}
	case len(name) > maxInterface:
		return field.ErrorList{field.TooLong(path, name, maxInterface)}
	case strings.ContainsAny(name, "/: \t\n"):
		return field.ErrorList{field.Invalid(path, name, "contains a character that is not allowed in interface names")}
	}
	return nil
}
