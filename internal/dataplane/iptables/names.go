// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// prefix starts the names of all our chains and sets. Nothing of kube-proxy's or
// the kubelet's starts so: theirs is KUBE-.
const prefix = "SLIP-"

// Names of chains that are always there.
const (
	chainServices   = prefix + "SERVICES" // the tree of ClusterIPs starts in it
	chainExternal   = prefix + "EXTERNAL"
	chainOutside    = prefix + "OUTSIDE"
	chainMasquerade = prefix + "MASQUERADE"

	// Of the table filter.
	chainFirewall   = prefix + "FIREWALL"
	chainInput      = prefix + "INPUT"
	chainForward    = prefix + "FORWARD"
	chainTranslated = prefix + "TRANSLATED"
)

// Names of the chains that other trees start in, and how those of branches start.
const (
	chainExternalTree = prefix + "TREE-EXTERNAL"
	chainLocalTree    = prefix + "TREE-LOCAL"
	chainHairpinTree  = prefix + "TREE-HAIRPIN"
	chainForwardTree  = prefix + "TREE-FORWARD" // of the table filter

	// branchPrefix is before the prefixes of pools in the order of names, for the sake
	// of iptables' speed (script.finish).
	branchPrefix = prefix + "BR-"
)

// How the names of the chains of pools start, by desired.Scope, and of the chains
// and lists of clients of endpoints with session affinity.
var poolPrefixes = [...]string{desired.Cluster: prefix + "SVC-", desired.Local: prefix + "LOC-"}

const (
	stickyPrefix = prefix + "SEP-"
	listPrefix   = prefix
)

// hashOf is 13 characters for what they name, the same in every run. A chain's name
// has 28 at the most.
func hashOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:8])
}
