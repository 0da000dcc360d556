// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// prefix begins the names of all our chains and sets.
const prefix = "SLIP-"

// Chains that always exist.
const (
	chainServices   = prefix + "SERVICES" // the tree of ClusterIPs begins in it
	chainExternal   = prefix + "EXTERNAL"
	chainOutside    = prefix + "OUTSIDE"
	chainMasquerade = prefix + "MASQUERADE"

	// In the table filter.
	chainFirewall   = prefix + "FIREWALL"
	chainInput      = prefix + "INPUT"
	chainForward    = prefix + "FORWARD"
	chainTranslated = prefix + "TRANSLATED"
	chainLocalnet   = prefix + "LOCALNET" // stays while route_localnet is set (Remove)

	// Chains that other trees begin in.
	chainExternalTree = prefix + "TREE-EXTERNAL"
	chainLocalTree    = prefix + "TREE-LOCAL"
	chainHairpinTree  = prefix + "TREE-HAIRPIN"
	chainForwardTree  = prefix + "TREE-FORWARD" // in the table filter

	// branchPrefix begins the names of a tree's other chains.
	branchPrefix = prefix + "BR-"
)

// poolPrefixes begin the names of the chains of pools, by desired.Scope.
var poolPrefixes = [...]string{desired.Cluster: prefix + "SVC-", desired.Local: prefix + "LOC-"}

// Prefixes of the names of chains and lists of clients of endpoints with session affinity.
const (
	stickyPrefix = prefix + "SEP-"
	listPrefix   = prefix
)

// hashOf returns 13 characters that stand for names, the same in every run. The name of a
// chain can have 28.
func hashOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:8])
}
