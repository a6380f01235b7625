// --- begin --------------------------------------------------------------------------------------
recall(true);
document.documentElement.dataset.ready = "yes";
