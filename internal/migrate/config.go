// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/yamldoc"
)

// gate is the feature gate of NodePorts on loopback addresses in nftables mode.
const gate = "KubeProxyNFTablesLocalhostNodePorts"

// Config is the configuration of a kube-proxy.
type Config struct {
	*config.Config
	From string // kube-proxy's mode

	proxy, own map[string]any // the documents, as they are
}

// Parse parses kube-proxy's configuration. A document with Slipstream's settings may be in it.
func Parse(data []byte) (*Config, error) {
	decoded, _, err := config.Decode(data)
	if err != nil {
		return nil, err
	}
	if err := decoded.Validate().ToAggregate(); err != nil {
		return nil, err
	}
	c := &Config{Config: decoded, From: decoded.Mode(), own: map[string]any{}}
	if decoded.ModeIsDefault() {
		c.From = config.IPTables
	}
	for _, d := range yamldoc.Split(data) {
		var document map[string]any
		if err := yaml.Unmarshal(d.Text, &document); err != nil {
			return nil, err
		}
		if document["kind"] == config.SlipstreamKind {
			c.own = document
		} else {
			c.proxy = document
		}
	}
	if c.proxy == nil {
		return nil, errors.New("there is no KubeProxyConfiguration in it")
	}
	return c, nil
}

// field returns a field as it is in the file, or nil.
func (c *Config) field(path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(c.proxy, path...)
	return value
}

// set sets a field of a document.
func set(document map[string]any, value any, path ...string) {
	for _, name := range path[:len(path)-1] {
		block, _ := document[name].(map[string]any)
		if block == nil {
			block = map[string]any{}
			document[name] = block
		}
		document = block
	}
	document[path[len(path)-1]] = value
}

// defaultAddresses is the default of nodePortAddresses.
func defaultAddresses(mode string) string {
	if config.TraitsOf(mode).Primary {
		return config.Primary
	}
	return config.All
}

// addresses are kube-proxy's nodePortAddresses, with the default of its mode.
func (c *Config) addresses() []string {
	if c.unsetAddresses() {
		return []string{defaultAddresses(c.From)}
	}
	return c.KubeProxy.NodePortAddresses
}

func (c *Config) unsetAddresses() bool {
	all, _ := c.field("nodePortAddresses").([]any)
	return len(all) == 0
}

// ranges are the ranges of a family in nodePortAddresses. all says that all addresses of the
// family are selected.
func (c *Config) ranges(is4 bool) (ranges []netip.Prefix, all bool) {
	effective := *c.Config
	effective.KubeProxy.NodePortAddresses = c.addresses()
	every, primary := effective.NodePortRanges()
	for _, p := range every {
		if p.Addr().Is4() == is4 {
			ranges = append(ranges, p)
		}
	}
	return ranges, len(ranges) == 0 && !primary || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// onLoopback reports whether kube-proxy serves NodePorts on loopback addresses of a family.
func (c *Config) onLoopback(is4 bool) bool {
	ranges, all := c.ranges(is4)
	loopback := slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
	switch from := config.TraitsOf(c.From); {
	case from.KernelLocalhost:
		return is4 && *c.KubeProxy.IPTables.LocalhostNodePorts && (all || loopback)
	case from.RelaysLocalhost:
		return c.HandlesLocalhostNodePorts() && loopback
	}
	return false
}

// leavesLoopback reports whether [Config.For] keeps iptables mode from serving NodePorts on
// loopback addresses.
func (c *Config) leavesLoopback(to string) bool {
	return config.TraitsOf(to).KernelLocalhost && c.From != to && !c.onLoopback(true)
}

// keepsLoopback reports whether [Config.For] keeps NodePorts on IPv4 loopback addresses.
func (c *Config) keepsLoopback(to string) bool {
	from, t := config.TraitsOf(c.From), config.TraitsOf(to)
	return c.onLoopback(true) && (t.KernelLocalhost || t.RelaysLocalhost && (from.RelaysLocalhost || c.field("iptables", "localhostNodePorts") == true))
}

// algorithm returns the algorithm of nftables mode in the place of ipvs.scheduler. No scheduler gives every
// Service a Maglev table.
func (c *Config) algorithm() string {
	former := c.KubeProxy.IPVS.Scheduler
	if s, err := desired.ParseScheduler(former); err == nil && !s.Algorithm.Hashes() {
		return former
	}
	switch former {
	case "sed", "nq", "twos":
		return "lc"
	}
	return "random"
}

// For returns the configuration to use in a mode with these Services: kube-proxy's, with what has to be set so that as
// little as possible changes, and Slipstream's.
func (c *Config) For(to string, services []*service) (string, error) {
	proxy, own, from, t := runtime.DeepCopyJSON(c.proxy), runtime.DeepCopyJSON(c.own), config.TraitsOf(c.From), config.TraitsOf(to)
	set(proxy, to, "mode")
	addresses := c.KubeProxy.NodePortAddresses
	if c.unsetAddresses() {
		addresses = nil
		if defaultAddresses(c.From) != defaultAddresses(to) {
			addresses = c.addresses()
		}
	}
	if c.leavesLoopback(to) {
		set(proxy, false, "iptables", "localhostNodePorts")
	}
	if from.KernelLocalhost && t.RelaysLocalhost && c.keepsLoopback(to) {
		set(proxy, true, "featureGates", gate)
		// The keyword localhost would add a range of IPv6.
		if ranges, all := c.ranges(true); !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Addr().IsLoopback() }) {
			if all && len(ranges) == 0 {
				addresses = append(slices.Clone(addresses), "0.0.0.0/0")
			}
			addresses = append(slices.Clone(addresses), "127.0.0.0/8")
		}
	}
	if len(addresses) > 0 {
		set(proxy, addresses, "nodePortAddresses")
	}
	for name, value := range c.masquerading(to) {
		set(proxy, value, masqueradeBlock(to), name)
	}
	if from.VirtualServers && t.Algorithms && c.KubeProxy.IPVS.Scheduler != "" && own["scheduler"] == nil {
		set(own, c.algorithm(), "scheduler")
	}
	if c.keepsUDP(to) {
		set(proxy, c.KubeProxy.IPVS.UDPTimeout.Duration.String(), "conntrack", "udpStreamTimeout")
	}
	if !from.VirtualServers && t.VirtualServers && slices.ContainsFunc(services, func(s *service) bool { return len(s.of(desired.LoadBalancerIP)) > 0 }) {
		set(proxy, true, "ipvs", "strictARP")
	}
	text, err := yaml.Marshal(proxy)
	if err != nil || len(own) == 0 {
		return string(text), err
	}
	set(own, config.GroupVersion.String(), "apiVersion")
	set(own, config.SlipstreamKind, "kind")
	more, err := yaml.Marshal(own)
	return string(text) + "---\n" + string(more), err
}

// keepsUDP reports whether ipvs.udpTimeout becomes conntrack.udpStreamTimeout.
func (c *Config) keepsUDP(to string) bool {
	const streamTimeout = 2 * time.Minute // the kernel's default of nf_conntrack_udp_timeout_stream
	return config.TraitsOf(c.From).VirtualServers && !config.TraitsOf(to).VirtualServers && c.KubeProxy.IPVS.UDPTimeout.Duration > streamTimeout && c.KubeProxy.Conntrack.UDPStreamTimeout.Duration == 0
}

// masqueradeBlock is the block with a mode's settings for masquerading.
func masqueradeBlock(mode string) string {
	if config.TraitsOf(mode).NFTablesBlock {
		return "nftables"
	}
	return "iptables"
}

// masquerading returns the settings for masquerading that have to be in the block of another mode.
func (c *Config) masquerading(to string) map[string]any {
	all, from, block := map[string]any{}, masqueradeBlock(c.From), masqueradeBlock(to)
	for _, name := range []string{"masqueradeAll", "masqueradeBit"} {
		// null and false, which kubeadm writes, are the defaults.
		if value, there := cmp.Or(c.field(from, name), any(false)), cmp.Or(c.field(block, name), any(false)); value != there {
			all[name] = c.field(from, name)
		}
	}
	return all
}
