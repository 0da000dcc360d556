// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// This file evaluates rules of iptables-legacy, as iptables-legacy-save prints them, for the first
// packet of a connection. Rules with matches that it does not know may match.

// words splits a line as a shell does: comments can have spaces within quotation marks.
var words = regexp.MustCompile(`"(?:\\.|[^"\\])*"|\S+`)

// legacyHooks are the hooks of built-in chains, and legacyPriorities those of the tables that drop
// packets (enum nf_ip_hook_priorities).
var (
	legacyHooks = map[string]uint32{
		"PREROUTING": unix.NF_INET_PRE_ROUTING, "INPUT": unix.NF_INET_LOCAL_IN, "FORWARD": unix.NF_INET_FORWARD,
		"OUTPUT": unix.NF_INET_LOCAL_OUT, "POSTROUTING": unix.NF_INET_POST_ROUTING,
	}
	legacyPriorities = map[string]int32{"raw": -300, "mangle": -150, "filter": 0, "security": 50}
)

// legacyTable returns the base chains of a table. command is iptables or ip6tables.
func legacyTable(command, table string, lines []string) (bases []Chain) {
	rules := map[string][]rule{}
	w := &walker{rules: rules}
	isChain := func(target string) bool { _, is := rules[target]; return is }
	for _, line := range lines {
		all := words.FindAllString(line, -1)
		if chain, is := strings.CutPrefix(line, ":"); is && len(all) > 1 {
			chain, _, _ = strings.Cut(chain, " ")
			rules[chain] = nil
			if hook, builtIn := legacyHooks[chain]; builtIn {
				bases = append(bases, Chain{command + "-legacy -t " + table, chain, hook, legacyPriorities[table], all[1] == "DROP", w})
			}
		}
		if len(all) > 1 && all[0] == "-A" {
			rules[all[1]] = append(rules[all[1]], rule{line, func() []outcome { w.note([]byte(line)); return legacyRule(all[2:], w.packet, isChain) }})
		}
	}
	return bases
}

// legacyRule evaluates a rule, which begins behind its chain.
func legacyRule(all []string, p *Packet, isChain func(string) bool) []outcome {
	o := outcome{match: yes, v: verdict{code: unix.NFT_CONTINUE}, path: path{whole: true}}
	varies := false // the last match
	for i := 0; i < len(all); i++ {
		inverted := all[i] == "!" && i+1 < len(all)
		if inverted {
			i++
		}
		option, value := all[i], ""
		if i+1 < len(all) {
			value = all[i+1]
		}
		switch option {
		case "-j", "-g":
			switch {
			case value == "RETURN":
				o.v.code = unix.NFT_RETURN
			case option == "-g":
				o.v = verdict{code: unix.NFT_GOTO, chain: value}
			case isChain(value):
				o.v = verdict{code: unix.NFT_JUMP, chain: value}
			default:
				o.v = targetVerdict(value, slices.Contains(all[i:], "--notrack"))
				if zone, err := strconv.ParseUint(all[len(all)-1], 0, 16); err == nil && value == "CT" && all[len(all)-2] == "--zone" {
					o.v.diverts, o.v.zone = Zoned, uint16(zone)
				}
				if clears := i+3 < len(all) && all[i+2] == "--set-xmark" && strings.HasPrefix(all[i+3], "0x0/"); !clears {
					o.effect = cmp.Or(targetEffect(value), o.effect)
				}
			}
			return []outcome{o} // what follows belongs to the target
		case "-m", "--comment":
			if option == "-m" {
				o.effect, varies = cmp.Or(effects[value], o.effect), !constant[value]
			}
			i++
			continue
		}
		if !strings.HasPrefix(option, "-") {
			continue // the value of an option that is not known
		}
		one, c := legacyMatch(option, all[i+1:], p)
		if inverted {
			one = yes - one
		}
		if one == maybe {
			c.Not = inverted
			o.and(c, varies || option == "--tcp-flags" || option == "-f")
		}
		if o.match = min(o.match, one); o.match == no {
			return nil
		}
	}
	return []outcome{o}
}

// legacyMatch evaluates one option of a rule. If it depends on a field alone, that is the condition.
func legacyMatch(option string, values []string, p *Packet) (matching, Condition) {
	if len(values) == 0 {
		return maybe, Condition{}
	}
	list := strings.Split(values[0], ",")
	switch option {
	case "-s":
		return within(p.Src.Addr(), list[0]), prefixIs(Source, list[0])
	case "-d":
		return within(p.Dst.Addr(), list[0]), prefixIs(Destination, list[0])
	case "-i":
		return onLink(p.In, list[0]), linkIs(In, list[0])
	case "-o":
		return onLink(p.Out, list[0]), linkIs(Out, list[0])
	case "--dport", "--dports":
		c := portsAre(DestinationPort, list)
		return p.inRanges(p.Dst.Port(), c.Ranges), c
	case "--sport", "--sports":
		c := portsAre(SourcePort, list)
		return p.inRanges(p.Src.Port(), c.Ranges), c
	}
	return legacyOther(option, list, values, p), Condition{}
}

// legacyOther evaluates other options.
func legacyOther(option string, list, values []string, p *Packet) matching {
	switch option {
	case "-p":
		number, known := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP, "icmp": unix.IPPROTO_ICMP, "ipv6-icmp": unix.IPPROTO_ICMPV6}[list[0]]
		if !known {
			return maybe
		}
		return matchingOf(number == p.Protocol)
	case "--ctstate", "--state":
		if slices.Contains(list, "DNAT") || slices.Contains(list, "SNAT") {
			return max(maybe, matchingOf(slices.Contains(list, p.stateName())))
		}
		return matchingOf(slices.Contains(list, p.stateName()))
	case "--tcp-flags":
		if len(values) < 2 || p.Protocol != unix.IPPROTO_TCP {
			return maybe
		}
		if p.Established && !p.Reply {
			mask, want := flagsOf(list), flagsOf(strings.Split(values[1], ","))
			return compare(field{[]byte{16 & mask}, []byte{23 | ^mask}}, unix.NFT_CMP_EQ, []byte{want}) // as in Packet.header
		}
		want := slices.DeleteFunc(list, func(flag string) bool { return flag != "SYN" && (flag != "ACK" || !p.Reply) })
		return matchingOf(values[1] == cmp.Or(strings.Join(want, ","), "NONE"))
	}
	return maybe
}

func flagsOf(names []string) (all byte) {
	for _, n := range names {
		all |= map[string]byte{"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32, "ALL": 63}[n]
	}
	return all
}

func prefixIs(f Field, cidr string) Condition {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return Condition{}
	}
	first, last := nfnl.Bounds(p)
	return Condition{Field: f, Ranges: []Range{{first, last}}}
}

func linkIs(f Field, name string) Condition {
	prefix, is := strings.CutSuffix(name, "+")
	name = prefix
	if !is {
		name = prefix + string(make([]byte, max(unix.IFNAMSIZ-len(prefix), 0)))
	}
	return Condition{Field: f, Ranges: f.fills([]byte(name), []byte(name), false)}
}

// portsAre has no ranges unless all of the list are ports, such as 80 and 8000:8080.
func portsAre(f Field, list []string) (c Condition) {
	for _, text := range list {
		first, last, is := strings.Cut(text, ":")
		if !is {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, failed := strconv.ParseUint(last, 10, 16)
		if err != nil || failed != nil {
			return Condition{}
		}
		c.Ranges = append(c.Ranges, Range{binary.BigEndian.AppendUint16(nil, uint16(from)), binary.BigEndian.AppendUint16(nil, uint16(to))})
	}
	c.Field = f
	return c
}

func within(a netip.Addr, cidr string) matching {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil || !a.IsValid() {
		return maybe
	}
	return matchingOf(prefix.Contains(a))
}

// onLink matches the name of an interface; a + at the end is any text.
func onLink(l Link, name string) matching {
	if !l.Known {
		return maybe
	}
	if prefix, is := strings.CutSuffix(name, "+"); is {
		return matchingOf(strings.HasPrefix(l.Name, prefix))
	}
	return matchingOf(l.Name == name)
}

// inRanges matches a port, which may not be known.
func (p *Packet) inRanges(port uint16, ranges []Range) matching {
	if ranges == nil {
		return maybe
	}
	for _, r := range ranges {
		from, to := binary.BigEndian.Uint16(r.First), binary.BigEndian.Uint16(r.Last)
		if port == 0 && int(to) >= p.unknownPort() {
			return maybe
		}
		if port >= from && port <= to {
			return yes
		}
	}
	return no
}
