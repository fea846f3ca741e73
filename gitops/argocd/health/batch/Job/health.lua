-- Health of a Job in Argo CD. The one that Argo CD has takes the condition Suspended=False for the
-- end of the Job: a Job that a queue has admitted would be Healthy while it runs.
local health = { status = "Progressing", message = "waits for the Job controller" }
local status = obj.status or {}

local function condition(kind)
  for _, each in ipairs(status.conditions or {}) do
    if each.type == kind and each.status == "True" then return each end
  end
end

-- "reason: message" of a condition, as far as it has them. Argo CD offers no `string` library here.
local function words(found, otherwise)
  local reason, message = found.reason or "", found.message or ""
  if reason ~= "" and message ~= "" then return reason .. ": " .. message end
  if reason == "" and message == "" then return otherwise end
  return reason .. message
end

local failed, complete = condition("Failed"), condition("Complete")
local failing, suspended = condition("FailureTarget"), condition("Suspended")
if failed then
  health.status = "Degraded"
  health.message = words(failed, "the Job has failed")
elseif complete then
  health.status = "Healthy"
  health.message = words(complete, "the Job has completed")
elseif failing then -- it fails as soon as its last pod has ended
  health.message = "stops its pods: " .. words(failing, "the Job fails")
elseif suspended or (obj.spec and obj.spec.suspend) then
  health.status = "Suspended"
  local queue = ((obj.metadata or {}).labels or {})["kueue.x-k8s.io/queue-name"]
  health.message = queue and ("waits for admission by the queue " .. queue)
    or "the Job is suspended"
elseif status.startTime then
  local wanted = (obj.spec or {}).parallelism or 1
  health.message = (status.ready or 0) .. " of " .. wanted .. " pods ready, "
    .. (status.active or 0) .. " active, " .. (status.succeeded or 0) .. " succeeded, "
    .. (status.failed or 0) .. " failed"
end
return health
