// SPDX-License-Identifier: Apache-2.0

package dataplane

// Reasons for which a ruleset rejects packets to Services. They are labels of a metric.
const (
	NoEndpoints        = "no_endpoints"        // refused: the Service port has no endpoints
	NoLocalEndpoints   = "no_local_endpoints"  // dropped: it has none that the traffic policy allows
	SourceNotAllowed   = "source_not_allowed"  // dropped: the client is not in loadBalancerSourceRanges
	UnknownPort        = "unknown_port"        // refused: the ClusterIP has no such port
	UnallocatedAddress = "unallocated_address" // dropped: no Service has the address of a ServiceCIDR
)

// Rejected are the numbers of packets that a ruleset has rejected, by desired.Family and
// reason. They start from 0 when the kernel's objects are created again.
type Rejected [2]map[string]uint64
