// SPDX-License-Identifier: Apache-2.0

package see

import "github.com/slipstream-proxy/slipstream/internal/observe/events"

// SourceProblem is the reason of warnings about objects that are not applied, and about the API server.
const SourceProblem = "Source"

// toDo says what to do about a cause whose step does not say it.
var toDo = map[Cause]string{
	NoReadyEndpoint:   "look at its pods and their readiness probes",
	NoLocalEndpoint:   "run a pod of it on this node, or set the traffic policy to Cluster",
	SourceRange:       "connect from such an address, or add the client's range",
	FrontendContested: remedies[events.FrontendContested],
	FeatureMissing:    "use a kernel that has it, or another proxy mode",
	Behind:            "look at 'slipstream status'",
	Firewall:          "remove that rule, or let these packets through before it",
	Forwarding:        "set the parameter to 1",
	NoRoute:           "look at the node's routes and 'ip rule'; the CNI plugin makes those to pods",
	Bridge:            "load the module br_netfilter, and set the parameter to 1",
	Hairpin:           "let the CNI plugin set hairpin mode (hairpinMode of the plugin bridge), or set it by that command",
	NoNeighbor:        "look at the pod and its interface, or the other node",
	ReversePath:       "set the parameter to 0, or correct the route",
	ConntrackFull:     "raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore)",
	NotListening:      "compare targetPort with the port that the pod's process listens on",
	NoAnswer:          "look at the process and the firewall in the pod, and at its way back to the client",
}

// remedies say what to do about a warning, by its reason.
var remedies = map[string]string{
	SourceProblem:                          "correct the object or the manifest that it names, or check the API server",
	events.FailedToStartProxierHealthcheck: "free the port, or set healthzBindAddress",
	events.FailedToStartMetricServer:       "free the port, or set metricsBindAddress",
	events.FailedToStartPage:               "free the port, or set uiBindAddress",
	events.FailedToStartServiceHealthcheck: "free the port, or set spec.healthCheckNodePort of the Service",
	events.FailedToServeLoopbackNodePort:   "free the port, or connect to another address of the node",
	events.FailedToTuneConntrack:           "let the proxy write /proc/sys, or set conntrack's fields to 0 and the parameters on the node",
	events.FailedToSetSysctl:               "let the proxy write /proc/sys, or set the parameter on the node",
	events.FeatureMissing:                  "load the kernel module, install the program or set the kernel parameter that it names, or use another proxy mode",
	events.DefaultMode:                     "set the mode",
	events.FailedToProgram:                 "see the log; it is tried again",
	events.Damaged:                         "find the program on the node that changes the rules; they have been programmed again",
	events.SocketsUnavailable:              "provide what it names, or set socketLoadBalancing to off",
	events.FailedToConnectSockets:          "see the log; it is tried again",
	events.FailedToAccelerate:              "see the log; connections stay on the slow path meanwhile",
	events.HardwareOffloadUnavailable:      "set fastPath.hardwareOffload to off; connections take the fast path in software",
	events.NodeMissing:                     "set hostnameOverride to the name of the Node object, or register the node",
	events.LeftoversStay:                   "remove it by hand, or run 'slipstream cleanup' while no proxy runs",
	events.InvalidService:                  "correct the field of the Service",
	events.EndpointUnanswered:              "look at the pod, its node and the network to it: connections to the endpoint are not answered, although it is ready",
	events.SessionAffinityFull:             "lower sessionAffinityConfig.clientIP.timeoutSeconds of the Service, or spread its clients over more nodes",
	events.FrontendContested:               "give one of the Services another address or port",
}
