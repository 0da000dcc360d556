// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// toyTables are the tables of the toy, by family.
type toyTables [2]toyTable

// toyTable is a table of the toy: its sets, maps and chains by kind and name, such as "chain services".
type toyTable map[string]toyObject

type toyObject struct {
	declaration []string // such as "type ipv4_addr"; of chains only base chains have one
	items       []string // elements, or rules in order
}

var toyFamilies = [2]struct{ name, addr, loopback string }{
	desired.IPv4: {"ip", "ipv4_addr", "127.0.0.0/8"},
	desired.IPv6: {"ip6", "ipv6_addr", "::1"},
}

// toySets are the names of the sets of a change.
var toySets = [desired.Programmed]string{"cluster-ips", "hairpin-ips", "node-addresses", "service-cidrs", "refused-node-ports"}

const (
	toyPorts   = "meta l4proto . th dport"
	toyClients = "clients-" // prefix of the sets that rules fill, one for each backend with affinity
)

// toyWriter writes the table of a family.
type toyWriter struct {
	toyTable
	*toyContent
	family desired.Family
	ip     string // "ip" or "ip6"
	mark   uint32
	sticky map[string][]string // names of the backends with affinity, by what toyService returns
}

// table returns the table that the content needs in place of the one that the kernel has. Sets of clients
// stay as long as the Service: a client that has not noticed that its backend was gone keeps it.
func (c *toyContent) table(f desired.Family, mark uint32, had toyTable) toyTable {
	addr := toyFamilies[f].addr
	w := toyWriter{toyTable{}, c, f, toyFamilies[f].name, mark, map[string][]string{}}
	for set, kind := range [desired.Programmed]string{
		desired.ClusterIPs: addr, desired.HairpinIPs: addr + " . " + addr, desired.NodeAddresses: addr,
		desired.ServiceCIDRs: addr + "\nflags interval", desired.RefusedNodePorts: "inet_proto . inet_service",
	} {
		w.declare("set "+toySets[set], strings.Split("type "+kind, "\n")...)
		for m := range c.sets[set] {
			if m.Family() == f {
				w.add("set "+toySets[set], toyMember(desired.Set(set), m))
			}
		}
	}
	w.declare("map frontends", "type "+addr+" . inet_proto . inet_service : verdict")
	w.declare("map node-ports", "type inet_proto . inet_service : verdict")

	w.declare("chain prerouting", "type nat hook prerouting priority -100")
	w.add("chain prerouting", "jump services")
	w.declare("chain output", "type nat hook output priority -100")
	w.add("chain output", "jump services")
	w.add("chain services",
		w.ip+" daddr . "+toyPorts+" vmap @frontends",
		w.ip+" daddr @cluster-ips goto unknown-port",
		w.ip+" daddr @node-addresses "+toyPorts+" vmap @node-ports",
		w.ip+" daddr @service-cidrs fib daddr type != local drop",
		w.ip+" daddr "+toyFamilies[f].loopback+" "+toyPorts+" @refused-node-ports goto refuse")
	w.add("chain unknown-port", "fib daddr type local return", "goto refuse")
	w.add("chain refuse", "meta l4proto tcp reject with tcp reset", "reject")
	w.declare("chain postrouting", "type nat hook postrouting priority 99")
	w.add("chain postrouting",
		fmt.Sprintf("meta mark & %#x == %#x goto masquerade-it", mark, mark),
		"ct status dnat "+w.ip+" saddr . "+w.ip+" daddr @hairpin-ips goto masquerade-it")
	w.add("chain masquerade-it", fmt.Sprintf("meta mark set meta mark & %#x", ^mark), "masquerade fully-random")

	var all []*desired.Frontend
	for key, front := range c.frontends {
		if desired.FamilyOf(key.Addr()) == f {
			all = append(all, front)
		}
	}
	slices.SortFunc(all, func(a, b *desired.Frontend) int { return strings.Compare(toyFrontend(a), toyFrontend(b)) })
	for _, front := range all {
		service := toyService(front)
		for _, id := range front.Pools() {
			for _, b := range c.pools.Get(id).Slots {
				w.sticky[service] = append(w.sticky[service], toyBackend(service, b))
			}
		}
		if front.Affinity == 0 {
			continue
		}
		for head := range had {
			if name, ok := strings.CutPrefix(head, "set "+toyClients); ok && strings.HasPrefix(name, service) {
				w.sticky[service] = append(w.sticky[service], name)
			}
		}
		slices.Sort(w.sticky[service])
		w.sticky[service] = slices.Compact(w.sticky[service])
		for _, name := range w.sticky[service] {
			w.declare("set "+toyClients+name, "type "+addr, "size 65535", "flags dynamic,timeout")
		}
	}
	for _, front := range all {
		w.frontend(front)
	}
	return w.toyTable
}

func (t toyTable) declare(head string, lines ...string) { t[head] = toyObject{declaration: lines} }

func (t toyTable) add(head string, items ...string) {
	o := t[head]
	o.items = append(o.items, items...)
	t[head] = o
}

// frontend writes the chain of a frontend: who may connect, what is masqueraded, and which pool is used.
func (w *toyWriter) frontend(f *desired.Frontend) {
	name := toyFrontend(f)
	port := fmt.Sprintf("%d . %d", f.Protocol, f.Port())
	if f.OnNode() {
		w.add("map node-ports", port+" : goto "+name)
	} else {
		w.add("map frontends", f.Addr().String()+" . "+port+" : goto "+name)
	}
	rule := func(parts ...string) { w.add("chain "+name, strings.TrimSpace(strings.Join(parts, ""))) }
	if f.Sources != nil {
		rule("jump from-" + name)
		for _, p := range f.Sources.All() {
			w.add("chain from-"+name, w.ip+" saddr "+p.String()+" return")
		}
		w.add("chain from-"+name, "drop")
	}
	all := "goto " + w.pool(f, f.Pool)
	if f.LocalPool != desired.NoPool && w.local.Known(w.family) {
		rule(w.pods(""), all)
	}
	setMark := fmt.Sprintf("meta mark set meta mark | %#x", w.mark)
	switch m := w.masquerade.Of(f); {
	case m == desired.MasqueradeAlways:
		rule(setMark)
	case m == desired.MasqueradeNode:
		rule("fib saddr type local ", setMark)
	case w.local.Known(w.family):
		rule(w.pods("!= "), setMark)
	}
	if f.LocalPool != desired.NoPool {
		rule("fib saddr type local ", all)
		all = "goto " + w.pool(f, f.LocalPool)
	}
	rule(all)
}

// pods matches traffic from this node's pods, or with operator "!= " all other.
func (w *toyWriter) pods(operator string) string {
	if l := &w.local; l.Iface != "" {
		star := map[bool]string{true: "*"}[l.IsPrefix]
		return fmt.Sprintf("iifname %s%q ", operator, l.Iface+star)
	}
	return w.ip + " saddr " + operator + w.local.CIDRs[w.family].String() + " "
}

// pool writes the chain of a pool for a Service port, and returns its name.
func (w *toyWriter) pool(f *desired.Frontend, id desired.PoolID) (name string) {
	p, service := w.pools.Get(id), toyService(f)
	if p.IfEmpty == desired.Pass {
		service += "-pass"
	}
	if name = "pool-" + service + "-" + p.Scope.String(); w.toyTable["chain "+name].items != nil {
		return name // by another frontend
	}
	rule := func(format string, args ...any) { w.add("chain "+name, fmt.Sprintf(format, args...)) }
	slots := slices.SortedFunc(slices.Values(p.Slots), desired.Backend.Compare)
	if f.Affinity > 0 {
		others := slices.Clone(w.sticky[service])
		for _, b := range slices.Compact(slices.Clone(slots)) {
			rule("%s saddr @%s%s goto %s", w.ip, toyClients, toyBackend(service, b), w.backend(f, b))
			others = slices.DeleteFunc(others, func(name string) bool { return name == toyBackend(service, b) })
		}
		for _, name := range others { // a client that loses its backend does not return to it
			rule("delete @%s%s { %s saddr }", toyClients, name, w.ip)
		}
	}
	var verdicts []string
	for i, b := range slots {
		verdicts = append(verdicts, fmt.Sprintf("%d : goto %s", i, w.backend(f, b)))
	}
	switch {
	case len(slots) > 0:
		rule("numgen random mod %d vmap { %s }", len(slots), strings.Join(verdicts, ", "))
	case p.IfEmpty == desired.Drop:
		rule("drop")
	case p.IfEmpty == desired.Pass:
		rule("accept")
	default:
		rule("goto refuse")
	}
	return name
}

// backend writes the chain that translates packets to a backend, and returns its name. With
// affinity, the backend belongs to one Service port, for which the chain records the client.
func (w *toyWriter) backend(f *desired.Frontend, b desired.Backend) (name string) {
	service := ""
	if f.Affinity > 0 {
		service = toyService(f)
	}
	if name = "to-" + toyBackend(service, b); w.toyTable["chain "+name].items != nil {
		return name // by another pool
	}
	if f.Affinity > 0 {
		w.add("chain "+name, fmt.Sprintf("update @%s%s { %s saddr timeout %ds }", toyClients, toyBackend(service, b), w.ip, f.Affinity))
	}
	w.add("chain "+name, "meta l4proto { tcp, udp, sctp } dnat to "+b.String())
	return name
}

// toyFrontend names a frontend's chain. Names of nft have no colons.
func toyFrontend(f *desired.Frontend) string {
	kind := map[bool]string{false: "cluster", true: "external"}[f.Kind.External()]
	return toyName(fmt.Sprintf("%s-%d-%s", kind, f.Protocol, f.AddrPort))
}

// toyBackend is a part of names.
func toyBackend(service string, b desired.Backend) string { return toyName(service + "-" + b.String()) }

func toyName(text string) string {
	return strings.NewReplacer(":", "_", "[", "", "]", "").Replace(text)
}

// toyService identifies a Service port with its protocol in names, across runs.
func toyService(f *desired.Frontend) string {
	h := fnv.New64a()
	fmt.Fprint(h, f.Service, f.Protocol)
	return fmt.Sprintf("%x", h.Sum64())
}

// toyMember is an element of a set; parseToyMember is its inverse.
func toyMember(set desired.Set, m desired.Member) string {
	switch set {
	case desired.HairpinIPs:
		return m.Addr.String() + " . " + m.Addr.String()
	case desired.RefusedNodePorts:
		return fmt.Sprintf("%d . %d", m.Protocol, m.Port)
	}
	return m.String()
}

func parseToyMember(set desired.Set, f desired.Family, text string) (desired.Member, error) {
	switch first, second, _ := strings.Cut(text, " . "); set {
	case desired.ServiceCIDRs:
		p, err := toyPrefix(text)
		return desired.Range(p), err
	case desired.RefusedNodePorts:
		key, err := toyPort(f, first, second)
		return desired.PortOf(f, key.Protocol, key.Port()), err
	default:
		a, err := netip.ParseAddr(first)
		return desired.Address(a), err
	}
}

// toyPrefix parses a range. nft leaves out the length of one address.
func toyPrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Prefix(a.BitLen())
	}
	return netip.ParsePrefix(text)
}

func toyPort(f desired.Family, protocol, port string) (desired.FrontendKey, error) {
	proto, err := strconv.ParseUint(protocol, 10, 8)
	number, err2 := strconv.ParseUint(port, 10, 16)
	if err == nil {
		err = err2
	}
	addr := [2]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[f]
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(addr, uint16(number)), Protocol: desired.Protocol(proto)}, err
}

// String is the table as nft reads it.
func (t toyTable) String(f desired.Family) string {
	var out strings.Builder
	fmt.Fprintf(&out, "table %s toy {\n", toyFamilies[f].name)
	for _, head := range slices.Sorted(maps.Keys(t)) {
		o := t[head]
		fmt.Fprintf(&out, "%s {\n%s\n", head, strings.Join(o.declaration, "\n"))
		switch {
		case strings.HasPrefix(head, "chain "):
			fmt.Fprintln(&out, strings.Join(o.items, "\n"))
		case len(o.items) > 0:
			fmt.Fprintf(&out, "elements = { %s }\n", strings.Join(slices.Sorted(slices.Values(o.items)), ", "))
		}
		out.WriteString("}\n")
	}
	out.WriteString("}\n")
	return out.String()
}

// parseToyTables finds the tables in what nft lists.
func parseToyTables(listing string) (all toyTables) {
	for f := range all {
		all[f] = parseToyTable(listing, desired.Family(f))
	}
	return all
}

// parseToyTable finds one of them. It leaves out the clients in sets that rules fill.
func parseToyTable(listing string, f desired.Family) (t toyTable) {
	_, listing, found := strings.Cut("\n"+listing, "\ntable "+toyFamilies[f].name+" toy {\n")
	if !found {
		return nil
	}
	t = toyTable{}
	var head string
	inElements := false
	for line := range strings.Lines(listing) {
		text := strings.TrimSpace(line)
		o := t[head]
		switch {
		case strings.HasPrefix(line, "}"):
			return t
		case text == "" || line == "\t}\n":
			continue
		case !strings.HasPrefix(line, "\t\t"):
			head = strings.TrimSuffix(text, " {")
			t[head] = toyObject{}
			continue
		case strings.HasPrefix(text, "elements = {"), inElements:
			elements, isLast := strings.CutSuffix(strings.TrimPrefix(text, "elements = {"), "}")
			inElements = !isLast
			if !strings.HasPrefix(head, "set "+toyClients) {
				for e := range strings.SplitSeq(elements, ",") {
					if e = strings.TrimSpace(e); e != "" {
						o.items = append(o.items, e)
					}
				}
			}
		case strings.HasPrefix(head, "chain ") && !strings.HasPrefix(text, "type "):
			o.items = append(o.items, text)
		default:
			o.declaration = append(o.declaration, text)
		}
		t[head] = o
	}
	return t
}

// heads are the keys of two tables, in order.
func (t toyTable) heads(other toyTable) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(t)), maps.Keys(other))
	slices.Sort(all)
	return slices.Compact(all)
}

// change appends the commands that make the table another one, and returns how many elements and rules
// they write and delete. Clients stay recorded, unless the table has an object of another type.
func (t toyTable) change(script *strings.Builder, f desired.Family, want toyTable) (n int) {
	of := " " + toyFamilies[f].name + " toy "
	var delayed []string
	added := toyTable{}
	for head, w := range want {
		if h, ok := t[head]; ok && !slices.Equal(h.declaration, w.declaration) {
			fmt.Fprintf(script, "delete table%s\n", of)
			return n + toyTable(nil).change(script, f, want)
		}
	}
	for _, head := range t.heads(want) {
		kind, name, _ := strings.Cut(head, " ")
		h, had := t[head]
		w, has := want[head]
		if has && !had {
			added.declare(head, w.declaration...)
		}
		if kind == "chain" {
			if has && had && slices.Equal(h.items, w.items) {
				continue
			}
			if n += len(h.items) + len(w.items); had {
				fmt.Fprintf(script, "flush chain%s%s\n", of, name)
			}
			added.add(head, w.items...)
		} else {
			for _, element := range h.items {
				if !slices.Contains(w.items, element) {
					key, _, _ := strings.Cut(element, " : ")
					fmt.Fprintf(script, "delete element%s%s { %s }\n", of, name, key)
					n++
				}
			}
			for _, element := range w.items {
				if !slices.Contains(h.items, element) {
					added.add(head, element)
					n++
				}
			}
		}
		if !has {
			delete(added, head)
			delayed = append(delayed, fmt.Sprintf("delete %s%s%s\n", kind, of, name))
		}
	}
	if len(added) > 0 {
		for head, o := range added {
			if len(o.declaration) == 0 && !strings.HasPrefix(head, "chain ") {
				added[head] = toyObject{want[head].declaration, o.items}
			}
		}
		script.WriteString(added.String(f))
	}
	slices.Sort(delayed) // chains before the sets that their rules use
	script.WriteString(strings.Join(delayed, ""))
	return n
}

// Rules as nft lists them.
var (
	toyGoto    = regexp.MustCompile(`goto ([\w.-]+)`)
	toySource  = regexp.MustCompile(`^ip6? saddr (\S+) return$`)
	toyDNAT    = regexp.MustCompile(`dnat to (\S+)$`)
	toyTimeout = regexp.MustCompile(`^update .* timeout (?:(\d+)d)?(\S*) }$`)
)

// read adds what the table has to a content.
func (t toyTable) read(f desired.Family, c *dataplane.Content) {
	fault := func(format string, args ...any) { c.Faults = append(c.Faults, fmt.Sprintf(format, args...)) }
	for set, name := range toySets {
		for _, element := range t["set "+name].items {
			m, err := parseToyMember(desired.Set(set), f, element)
			if c.Sets[set][m] = true; err != nil {
				fault("set %s: %v", name, err)
			}
		}
	}
	for _, element := range slices.Concat(t["map frontends"].items, t["map node-ports"].items) {
		match, chain, _ := strings.Cut(element, " : goto ")
		words := strings.Split(match, " . ")
		key, err := toyPort(f, words[len(words)-2], words[len(words)-1])
		if len(words) == 3 && err == nil {
			var a netip.Addr
			a, err = netip.ParseAddr(words[0])
			key = key.At(a)
		}
		if err != nil {
			fault("frontend %s: %v", element, err)
			continue
		}
		c.Frontends[key] = t.target(chain)
	}
}

// target follows the chain of a frontend.
func (t toyTable) target(chain string) (target dataplane.Target) {
	target.External = strings.HasPrefix(chain, "external-")
	for i, rule := range t["chain "+chain].items {
		to := toyGoto.FindStringSubmatch(rule)
		switch {
		case i == 0 && rule == "jump from-"+chain:
			target.Sources = []netip.Prefix{}
			for _, rule := range t["chain from-"+chain].items {
				if of := toySource.FindStringSubmatch(rule); of != nil {
					p, _ := toyPrefix(of[1])
					target.Sources = append(target.Sources, p)
				}
			}
		case to != nil && strings.HasPrefix(rule, "fib saddr type local "):
			target.Choice = t.choice(to[1], &target.Affinity)
			target.FromOutside = &dataplane.Choice{} // to be read from the last rule
		case to != nil && strings.HasPrefix(rule, "goto ") && target.FromOutside != nil:
			*target.FromOutside = t.choice(to[1], &target.Affinity)
		case to != nil && strings.HasPrefix(rule, "goto "):
			target.Choice = t.choice(to[1], &target.Affinity)
		}
	}
	return target
}

// choice follows the chain of a pool.
func (t toyTable) choice(pool string, affinity *uint32) (c dataplane.Choice) {
	rules := t["chain "+pool].items
	if len(rules) == 0 {
		return c
	}
	last := rules[len(rules)-1]
	var slots []desired.Backend
	for _, to := range toyGoto.FindAllStringSubmatch(last, -1) {
		for _, rule := range t["chain "+to[1]].items {
			if of := toyTimeout.FindStringSubmatch(rule); of != nil {
				days, _ := strconv.Atoi(of[1])
				rest, _ := time.ParseDuration(of[2])
				*affinity = uint32(days*24*3600 + int(rest.Seconds()))
			}
			if of := toyDNAT.FindStringSubmatch(rule); of != nil {
				to, _ := netip.ParseAddrPort(of[1])
				slots = append(slots, desired.NewBackend(to))
			}
		}
	}
	if len(slots) > 0 {
		return dataplane.ChoiceOf(desired.Balance{}, slots)
	}
	if last == "drop" {
		c.IfEmpty = desired.Drop
	} else if last == "accept" {
		c.IfEmpty = desired.Pass
	}
	return c
}
