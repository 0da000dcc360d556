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
	if k.ClientConnection.Burst < 0 {
		add(field.Invalid(field.NewPath("clientConnection", "burst"), k.ClientConnection.Burst, notNegative))
	}
	if _, ok := ParseAddr(k.BindAddress); !ok {
		add(field.Invalid(field.NewPath("bindAddress"), k.BindAddress, "must be an IP address"))
	}
	add(validateHostPort(field.NewPath("healthzBindAddress"), k.HealthzBindAddress)...)
	add(validateHostPort(field.NewPath("metricsBindAddress"), k.MetricsBindAddress)...)
	add(validateHidden(k.ShowHiddenMetricsForVersion)...)
	add(validateDetectLocal(k)...)
	add(c.ValidateNodePortAddresses()...)
	// kube-proxy's leftovers are removed in every mode, except in these ranges.
	_, exclude := ParseExcludeCIDRs(field.NewPath("ipvs", "excludeCIDRs"), k.IPVS.ExcludeCIDRs)
	add(exclude...)
	if o := k.OOMScoreAdj; o != nil && (*o < -1000 || *o > 1000) {
		add(field.Invalid(field.NewPath("oomScoreAdj"), *o, "must be from -1000 to 1000"))
	}
	add(validateConntrack(&k.Conntrack)...)
	if d := k.ConfigSyncPeriod; d.Duration <= 0 {
		add(field.Invalid(field.NewPath("configSyncPeriod"), d.Duration.String(), positive))
	}
	add(logsapi.Validate(&k.Logging, c.Gates(), field.NewPath("logging"))...)
	add(c.validateOwn()...)
	return errs
}

// Error texts for numbers and periods.
const (
	positive    = "must be greater than 0"
	notNegative = "must not be negative"
)

func (c *Config) validateMode() field.ErrorList {
	modes, mode, detail := Modes(), c.Mode(), ""
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
		if bit := *b.masqueradeBit; bit != nil && (*bit < 0 || *bit > 31) {
			errs = append(errs, field.Invalid(field.NewPath(b.block, "masqueradeBit"), *bit, "must be from 0 to 31"))
		}
	}
	path := field.NewPath(m.block)
	if d := m.syncPeriod.Duration; d <= 0 {
		errs = append(errs, field.Invalid(path.Child("syncPeriod"), d.String(), positive))
	}
	if d := m.minSyncPeriod.Duration; d < 0 {
		errs = append(errs, field.Invalid(path.Child("minSyncPeriod"), d.String(), notNegative))
	}
	if k.Mode == IPVS {
		v := &k.IPVS
		for name, d := range map[string]time.Duration{"tcpTimeout": v.TCPTimeout.Duration, "tcpFinTimeout": v.TCPFinTimeout.Duration, "udpTimeout": v.UDPTimeout.Duration} {
			if d < 0 {
				errs = append(errs, field.Invalid(path.Child(name), d.String(), notNegative))
			}
		}
	}
	return append(errs, m.validateMin(path.Child("minSyncPeriod"), m.minSyncPeriod.Duration)...)
}

// validateMin checks that a minimum period is not longer than the mode's sync period.
func (m perMode) validateMin(path *field.Path, d time.Duration) field.ErrorList {
	if most := m.syncPeriod.Duration; d > most && most > 0 {
		return field.ErrorList{field.Invalid(path, d.String(), fmt.Sprintf("must not be greater than %s (%v)", field.NewPath(m.block, "syncPeriod"), most))}
	}
	return nil
}

// validateHidden accepts the same value as kube-proxy of [KubernetesVersion]: the previous
// minor version.
func validateHidden(version string) field.ErrorList {
	const previous = "1.36"
	if version == "" || version == previous {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("showHiddenMetricsForVersion"), version, "must be empty or "+previous)}
}

func validateConntrack(c *kubeproxy.KubeProxyConntrackConfiguration) (errs field.ErrorList) {
	path := field.NewPath("conntrack")
	invalid := func(name string, negative bool, value any) {
		if negative {
			errs = append(errs, field.Invalid(path.Child(name), value, notNegative))
		}
	}
	period := func(name string, d *metav1.Duration) {
		if d != nil {
			invalid(name, d.Duration < 0, d.Duration.String())
		}
	}
	invalid("maxPerCore", ptr.Deref(c.MaxPerCore, 0) < 0, c.MaxPerCore)
	invalid("min", ptr.Deref(c.Min, 0) < 0, c.Min)
	period("tcpEstablishedTimeout", c.TCPEstablishedTimeout)
	period("tcpCloseWaitTimeout", c.TCPCloseWaitTimeout)
	period("udpTimeout", &c.UDPTimeout)
	period("udpStreamTimeout", &c.UDPStreamTimeout)
	return errs
}

// validateOwn checks Slipstream's own settings, except fastPath (see [Config.Validate]).
func (c *Config) validateOwn() (errs field.ErrorList) {
	period := func(path string, d *metav1.Duration) {
		if d != nil && d.Duration <= 0 {
			errs = append(errs, field.Invalid(field.NewPath(path), d.Duration.String(), positive))
		}
	}
	period("minSyncPeriod", c.Slipstream.MinSyncPeriod)
	if d := c.Slipstream.MinSyncPeriod; d != nil {
		errs = append(errs, ofMode(&c.KubeProxy, c.KubeProxy.Mode).validateMin(field.NewPath("minSyncPeriod"), d.Duration)...)
	}
	period("checkPeriod", c.Slipstream.CheckPeriod)
	if d := c.Slipstream.VerifyPeriod; d.Duration < 0 {
		errs = append(errs, field.Invalid(field.NewPath("verifyPeriod"), d.Duration.String(), notNegative))
	}
	if name := c.Slipstream.Scheduler; name != "" {
		if _, err := desired.ParseScheduler(name); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("scheduler"), name, err.Error()))
		}
	}
	if _, err := c.Annotated(); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("serviceAnnotations"), c.Slipstream.ServiceAnnotations, "must be all, none or a selector of labels: "+err.Error()))
	}
	for i, text := range c.Slipstream.ExternalIPRanges {
		if _, err := netip.ParsePrefix(text); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("externalIPRanges").Index(i), text, "not a range of IP addresses: "+err.Error()))
		}
	}
	for name, n := range map[string]int{"namespaceSlots": c.Slipstream.NamespaceSlots, "namespaceElements": c.Slipstream.NamespaceElements} {
		if n < 0 {
			errs = append(errs, field.Invalid(field.NewPath(name), n, "must not be negative"))
		}
	}
	if n := c.Slipstream.MaglevTableSize; n != 0 && !slices.Contains(desired.TableSizes(), n) {
		errs = append(errs, field.Invalid(field.NewPath("maglevTableSize"), n, fmt.Sprintf("must be one of %d", desired.TableSizes())))
	}
	if path := c.Slipstream.StatusSocket; !filepath.IsAbs(path) {
		errs = append(errs, field.Invalid(field.NewPath("statusSocket"), path, "must be an absolute path"))
	}
	if address := c.Slipstream.UIBindAddress; address != "" {
		errs = append(errs, validateHostPort(field.NewPath("uiBindAddress"), address)...)
	}
	errs = append(errs, c.validateHTTP()...)
	errs = append(errs, c.validateSockets()...)
	if c.Slipstream.Manifests != "" && c.KubeProxy.ClientConnection.Kubeconfig != "" {
		errs = append(errs, field.Invalid(field.NewPath("manifests"), c.Slipstream.Manifests, "cannot be combined with the Kubernetes API (clientConnection.kubeconfig)"))
	}
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
	case c.Mode() == IPVS:
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
