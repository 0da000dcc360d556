// SPDX-License-Identifier: Apache-2.0

package see

import "github.com/slipstream-proxy/slipstream/internal/observe/events"

// SourceProblem is the reason of warnings about objects that are not applied, and about the API server.
const SourceProblem = "Source"

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
	events.FeatureMissing:                  "load the kernel module or install the program that it names, or use another proxy mode",
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
	events.SessionAffinityFull:             "lower sessionAffinityConfig.clientIP.timeoutSeconds of the Service, or spread its clients over more nodes",
	events.FrontendContested:               "give one of the Services another address or port",
}
